"""Programs written for `tf.estimator` run on today's TensorFlow unchanged.

`install()` puts back what TensorFlow 2.16 took out, from this package; `uninstall()` takes it away
again. `python -m tfx_tpu_trainer.compat PROGRAM` runs a program with it. Importing this module
changes nothing, and does not import TensorFlow.
"""

from tfx_tpu_trainer.compat._installation import Installation, install, uninstall

__all__ = ["Installation", "install", "uninstall"]
