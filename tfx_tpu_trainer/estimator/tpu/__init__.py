"""The API of `tf.compat.v1.estimator.tpu`, name for name, and the helpers of an export.

The helpers are those of `tensorflow_estimator.python.estimator.tpu.tpu_estimator`, which programs
import although the original does not list them; `from_estimator` is ours.
"""

import tensorflow as _tf

from tfx_tpu_trainer.estimator.export.batching import BatchConfig
from tfx_tpu_trainer.estimator.export.tpu_inference import (
    call_computation,
    inference_on_tpu,
    model_fn_inference_on_tpu,
)
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec
from tfx_tpu_trainer.estimator.tpu.from_estimator import export_estimator_savedmodel, from_estimator
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.tpu_config import InputPipelineConfig, TPUConfig
from tfx_tpu_trainer.estimator.tpu.tpu_estimator import (
    ExportSavedModelApiVersion,
    TPUEstimator,
)
from tfx_tpu_trainer.estimator.tpu.tpu_estimator_spec import TPUEstimatorSpec

CrossShardOptimizer = _tf.compat.v1.tpu.CrossShardOptimizer

__all__ = [
    "BatchConfig",
    "CrossShardOptimizer",
    "EmbeddingConfigSpec",
    "ExportSavedModelApiVersion",
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "call_computation",
    "experimental",
    "export_estimator_savedmodel",
    "from_estimator",
    "inference_on_tpu",
    "model_fn_inference_on_tpu",
]
