"""Private modules of tf.contrib.tpu, which programs imported all the same, and the names of ours that replace them."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice

_THEME: Final = "contrib"
_PRIVATE: Final = "tensorflow.contrib.tpu.python"
OURS: Final = "tfx_tpu_trainer.estimator.tpu"
OUR_NAMES: Final = frozenset(
    {
        "BatchConfig",
        "CrossShardOptimizer",
        "EmbeddingConfigSpec",
        "ExportSavedModelApiVersion",
        "InputPipelineConfig",
        "RunConfig",
        "TPUClusterResolver",
        "TPUConfig",
        "TPUEstimator",
        "TPUEstimatorSpec",
        "call_computation",
        "experimental",
        "export_estimator_savedmodel",
        "from_estimator",
        "inference_on_tpu",
        "model_fn_inference_on_tpu",
    }
)
"""The public names of our own module: an import of the old module becomes one of ours, name by name."""

# Modules that TensorFlow has outside of tf.contrib.
_MOVED: Final = {
    **{
        f"{_PRIVATE}.tpu.{module}": f"tensorflow.python.tpu.{module}"
        for module in (
            "bfloat16",
            "device_assignment",
            "feature_column",
            "functional",
            "tensor_tracer",
            "topology",
            "tpu_feed",
            "tpu_function",
            "tpu_sharding",
            "tpu_system_metadata",
            "training_loop",
        )
    },
    f"{_PRIVATE}.ops.tpu_ops": "tensorflow.python.tpu.ops.tpu_ops",
    f"{_PRIVATE}.tpu.tpu": "tensorflow.compat.v1.tpu",
}
_GONE: Final = {
    "async_checkpoint": "RunConfig(save_checkpoints_steps=...): checkpoints are written between loops",
    "error_handling": "leave it out: an error in a step ends the session that ran it, and is raised",
    "keras_support": (
        "tfx_tpu_trainer.estimator.keras_to_estimator(model, ...), or tf.distribute.TPUStrategy for a Keras model"
    ),
    "session_support": "leave it out: a lost TPU is an error of the session",
    "tpu_embedding": "tpu.EmbeddingConfigSpec, or a table in model_fn",
    "tpu_infeed": "leave it out: batches are plain inputs of the loop",
    "util": "leave it out: they were internal helpers of the estimator",
}

RULES: Final[dict[str, Advice]] = {
    **{
        old: Advice(
            _THEME,
            Verdict.EDIT,
            "TensorFlow 2 has no tf.contrib; this module moved.",
            edit="from {0} import {2}".format(*new.rpartition(".")),
            becomes=new,
        )
        for old, new in _MOVED.items()
    },
    **{
        f"{_PRIVATE}.tpu.{module}": Advice(
            _THEME,
            Verdict.EDIT,
            "A private module of tf.contrib.tpu; it has no replacement.",
            edit,
        )
        for module, edit in _GONE.items()
    },
}
