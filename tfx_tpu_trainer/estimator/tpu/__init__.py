"""The API of `tf.compat.v1.estimator.tpu`, name for name."""

import tensorflow as _tf

from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.tpu_config import InputPipelineConfig, TPUConfig
from tfx_tpu_trainer.estimator.tpu.tpu_estimator import (
    ExportSavedModelApiVersion,
    TPUEstimator,
)
from tfx_tpu_trainer.estimator.tpu.tpu_estimator_spec import TPUEstimatorSpec

CrossShardOptimizer = _tf.compat.v1.tpu.CrossShardOptimizer

__all__ = [
    "CrossShardOptimizer",
    "ExportSavedModelApiVersion",
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
]
