"""TPUEstimator for today's TensorFlow, and a TFX component that trains with it.

Import what you need from the subpackages: `tfx_tpu_trainer.component` holds the TFX components,
`tfx_tpu_trainer.estimator` and `tfx_tpu_trainer.estimator.tpu` the API of `tf.estimator` and of
`tf.compat.v1.estimator.tpu`. This module imports neither TensorFlow nor TFX, so that a program can still choose
TensorFlow's environment variables (`TF_USE_LEGACY_KERAS`, `TF_CPP_MIN_LOG_LEVEL`) after importing it.
"""

__version__ = "0.1.0"
