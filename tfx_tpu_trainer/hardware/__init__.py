"""Describes TPU chips, slices and a pipeline's requests as plain data, without TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.hardware._slices import CHIPS, Chip, Slice, find_slice, known_slices
    from tfx_tpu_trainer.hardware._tpu_spec import TpuSpec

__all__ = [
    "CHIPS",
    "Chip",
    "Slice",
    "TpuSpec",
    "find_slice",
    "known_slices",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "._slices": ["CHIPS", "Chip", "Slice", "find_slice", "known_slices"],
        "._tpu_spec": ["TpuSpec"],
    },
    extra="tfx",
)
