"""The API of `tf.compat.v1.estimator.tpu`, name for name, and the helpers of an export.

The helpers are those of `tensorflow_estimator.python.estimator.tpu.tpu_estimator`, which programs
import although the original does not list them; `from_estimator` is ours.
"""

import tensorflow as _tf

from tfx_tpu_trainer.estimator.export._tpu_call import BatchConfig
from tfx_tpu_trainer.estimator.export._tpu_metagraph import (
    call_computation,
    inference_on_tpu,
    model_fn_inference_on_tpu,
)
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu._cluster_resolver import TPUClusterResolver
from tfx_tpu_trainer.estimator.tpu._from_estimator import (
    export_estimator_savedmodel,
    from_estimator,
)
from tfx_tpu_trainer.estimator.tpu._run_config import InputPipelineConfig, RunConfig, TPUConfig
from tfx_tpu_trainer.estimator.tpu._tpu_estimator import (
    ExportSavedModelApiVersion,
    TPUEstimator,
)
from tfx_tpu_trainer.estimator.tpu._tpu_estimator_spec import TPUEstimatorSpec
from tfx_tpu_trainer.estimator.tpu.embedding.spec import EmbeddingConfigSpec

CrossShardOptimizer = _tf.compat.v1.tpu.CrossShardOptimizer
"""TensorFlow's own `tf.compat.v1.tpu.CrossShardOptimizer`: averages the gradients of all cores.

Examples:
    The first core has the row 1, the second the row 3; the step uses the mean of their
    gradients on both:

    >>> from tfx_tpu_trainer.estimator import tpu
    >>> import tensorflow as tf
    >>> def input_fn(params):
    ...     rows = tf.data.Dataset.from_tensor_slices([[1.0], [3.0]])
    ...     return rows.batch(params["batch_size"], drop_remainder=True)
    >>> def model_fn(features, labels, mode, params):
    ...     weight = tf.compat.v1.get_variable("weight", [], initializer=tf.zeros_initializer())
    ...     loss = tf.reduce_mean(features * weight)
    ...     sgd = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    ...     step = tf.compat.v1.train.get_global_step()
    ...     train_op = tpu.CrossShardOptimizer(sgd).minimize(loss, step)
    ...     return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
    >>> config = tpu.RunConfig(
    ...     model_dir="runs/mean", master="emulated", tpu_config=tpu.TPUConfig(num_shards=2)
    ... )
    >>> estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=2)
    >>> print(estimator.train(input_fn, max_steps=1).get_variable_value("weight"))
    -2.0
"""

__all__ = [
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
]
