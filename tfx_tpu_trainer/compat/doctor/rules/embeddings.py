"""What the embeddings of a TPU's embedding cores are described with."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, moved

_THEME: Final = "embeddings"
_V1: Final = "tensorflow.compat.v1.tpu.experimental"
_PARAMETERS: Final = (
    "AdagradParameters AdamParameters FtrlParameters StochasticGradientDescentParameters"
)

RULES: Final[dict[str, Advice]] = {
    **{
        f"{_V1}.{name}": Advice(
            _THEME,
            Verdict.WORKS,
            "TensorFlow 2.16 removed it; tfx_tpu_trainer.compat restores it. Without compat: "
            f"tfx_tpu_trainer.estimator.tpu.experimental.{name}.",
        )
        for name in _PARAMETERS.split()
    },
    **moved(
        _THEME,
        "TensorFlow 2 had it only in tf.compat.v1, where tfx_tpu_trainer.compat restores it.",
        "tensorflow.tpu.experimental",
        _V1,
        _PARAMETERS,
    ),
    **moved(
        _THEME,
        "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.estimator.tpu.experimental has this name.",
        "tensorflow.contrib.tpu",
        "tfx_tpu_trainer.estimator.tpu.experimental",
        "AdagradParameters AdamParameters FeatureConfig StochasticGradientDescentParameters TableConfig",
    ),
}
