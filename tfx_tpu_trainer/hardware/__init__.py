"""TPU chips and slices, and what a pipeline requests: plain data, without TensorFlow."""

from tfx_tpu_trainer.extras import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.hardware"):
    from tfx_tpu_trainer.hardware.chips import CHIPS, Chip
    from tfx_tpu_trainer.hardware.slices import Slice, find_slice, known_slices
    from tfx_tpu_trainer.hardware.tpu_spec import TpuSpec

__all__ = ["CHIPS", "Chip", "Slice", "TpuSpec", "find_slice", "known_slices"]
