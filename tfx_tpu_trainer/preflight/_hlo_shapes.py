"""Shapes of XLA: their text, their bytes, and the bytes that they take in the TPU's tiles."""

from __future__ import annotations

import math
from typing import Any

from tensorflow.compiler.xla import xla_data_pb2

_NAMES = {number: name.lower() for name, number in xla_data_pb2.PrimitiveType.items()}
_BITS = {
    **dict.fromkeys(("pred", "s4", "u4", "s8", "u8"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
}

# Rows and columns of a tile: the shape of the TPU's registers, and of its memory's layout.
SUBLANES, LANES = 8, 128


def element_type(shape: Any) -> str:
    """Returns the type of an array's elements, such as `"f32"`; `"tuple"` of a tuple."""
    return _NAMES.get(shape.element_type, "?")


def element_bytes(shape: Any) -> int:
    """Returns the bytes of an element of an array; 0 of what has none."""
    name = element_type(shape)
    return _BITS.get(name, 8 if name.startswith("f8") else 0) // 8


def unpadded_bytes(shape: Any) -> int:
    """Returns the bytes of an array or of all arrays of a tuple, without padding."""
    if shape.tuple_shapes:
        return sum(unpadded_bytes(each) for each in shape.tuple_shapes)
    return math.prod(shape.dimensions) * element_bytes(shape)


def padded_bytes(shape: Any) -> int:
    """Returns the bytes that an array, or all arrays of a tuple, take in the layout of a program."""
    if shape.tuple_shapes:
        return sum(padded_bytes(each) for each in shape.tuple_shapes)
    # From the slowest to the fastest changing dimension.
    sizes = [shape.dimensions[axis] for axis in reversed(shape.layout.minor_to_major)]
    if shape.layout.tiles:
        tile = shape.layout.tiles[0].dimensions
        for place, size in enumerate(reversed(tile), start=1):
            if place <= len(sizes):
                sizes[-place] = math.ceil(sizes[-place] / size) * size
    return math.prod(sizes) * element_bytes(shape)


def in_main_memory(shape: Any) -> bool:
    """Tells whether an array is in HBM; it may be in memory on the chip."""
    return shape.layout.memory_space == 0


def shape_text(shape: Any) -> str:
    """Writes a shape as XLA does, such as `"f32[1024,<=512]{1,0:T(8,128)}"`."""
    if shape.tuple_shapes:
        return f"({', '.join(shape_text(each) for each in shape.tuple_shapes)})"
    dynamic = [*shape.is_dynamic_dimension, *([False] * len(shape.dimensions))]
    sizes = ",".join(
        f"<={size}" if is_dynamic else str(size)
        for size, is_dynamic in zip(shape.dimensions, dynamic)
    )
    text = f"{element_type(shape)}[{sizes}]"
    order = ",".join(map(str, shape.layout.minor_to_major))
    tiles = "".join(f"({','.join(map(str, tile.dimensions))})" for tile in shape.layout.tiles)
    return f"{text}{{{order}:T{tiles}}}" if tiles else text
