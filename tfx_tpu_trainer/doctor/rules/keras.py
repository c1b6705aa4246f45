"""Keras models turned into estimators."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.doctor.findings import Verdict
from tfx_tpu_trainer.doctor.rules.advice import Advice

_THEME: Final = "keras"
_MODEL_TO_ESTIMATOR: Final = Advice(
    _THEME,
    Verdict.WORKS,
    "tfx_tpu_trainer.compat restores it; it returns an Estimator on the host, like the original. "
    "For TPU cores: tfx_tpu_trainer.estimator.keras_to_estimator(model, ...), a TPUEstimator with "
    "its batch sizes.",
)
_OPTIMIZER: Final = Advice(
    _THEME,
    Verdict.EDIT,
    "It wrapped an optimizer of tf.compat.v1.train for Keras.",
    "tf.keras.optimizers.legacy.Adam(...), or whichever of Keras 2 it is",
)

RULES: Final[dict[str, Advice]] = {
    f"tensorflow{version}.keras.estimator{name}": _MODEL_TO_ESTIMATOR
    for version in ("", ".compat.v1", ".compat.v2", ".python")
    for name in ("", ".model_to_estimator")
} | {
    "tensorflow.keras.optimizers.TFOptimizer": _OPTIMIZER,
    **{
        f"tensorflow.keras.backend.{name}": Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2's Keras has no sessions; tf.compat.v1.keras has them if Keras is Keras 2.",
            becomes=f"tensorflow.compat.v1.keras.backend.{name}",
        )
        for name in ("get_session", "set_session")
    },
    **{
        f"tensorflow.keras.layers.{name}": Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2's layers use cuDNN by themselves.",
            f"tf.keras.layers.{name[5:]}; tf.compat.v1.keras.layers.{name} of Keras 2 has the old variables",
        )
        for name in ("CuDNNGRU", "CuDNNLSTM")
    },
    "tensorflow.python.keras": Advice(
        _THEME,
        Verdict.EDIT,
        "TensorFlow's private copy of Keras, frozen since 2.6: its layers and models are not those of tf.keras.",
        "tf.keras, with TF_USE_LEGACY_KERAS=1 for Keras 2",
    ),
}
