"""TPU chips and slices, and what a pipeline requests: plain data, without TensorFlow."""

import typing
from typing import Any

from tfx_tpu_trainer.extras import of_extra
from tfx_tpu_trainer.hardware.chips import CHIPS, Chip
from tfx_tpu_trainer.hardware.slices import Slice, find_slice, known_slices

if typing.TYPE_CHECKING:
    from tfx_tpu_trainer.hardware.tpu_spec import TpuSpec

__all__ = ["CHIPS", "Chip", "Slice", "TpuSpec", "find_slice", "known_slices"]


def __getattr__(name: str) -> Any:
    # It needs pydantic; the estimators, which read the chips, do without.
    if name != "TpuSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with of_extra("tfx", for_what="tfx_tpu_trainer.hardware"):
        from tfx_tpu_trainer.hardware.tpu_spec import TpuSpec
    return TpuSpec
