"""`tf.contrib.staging`: a buffer of tensors on a device, filled in one step and emptied in a later one."""

from tfx_tpu_trainer.compat.contrib.tf_private import StagingArea

__all__ = ["StagingArea"]
