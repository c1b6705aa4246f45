"""Input functions for arrays and data frames; mirrors `tf.compat.v1.estimator.inputs`."""

from tfx_tpu_trainer.estimator.inputs._in_memory import numpy_input_fn, pandas_input_fn

__all__ = ["numpy_input_fn", "pandas_input_fn"]
