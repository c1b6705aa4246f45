"""Operations of the matrix units in a program: its convolutions and products of matrices.

The TPU's compiler writes products of matrices as convolutions too. A convolution counts the pairs
of an input and a kernel element that meet, as XLA's own cost analysis does: the padding of an image
and the gaps of a dilated one are not multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def matrix_flops(instruction: Any, by_id: Mapping[int, Any]) -> float:
    """Returns the operations of a convolution or product of matrices; 0 of anything else."""
    if instruction.opcode == "dot":
        left = by_id[instruction.operand_ids[0]].shape.dimensions
        contracted = instruction.dot_dimension_numbers.lhs_contracting_dimensions
        inner = math.prod(left[axis] for axis in contracted)
        return 2.0 * math.prod(_array(instruction.shape).dimensions) * inner
    if instruction.opcode == "convolution":
        left, right = (by_id[number].shape.dimensions for number in instruction.operand_ids)
        return _convolution_flops(instruction, left, right)
    return 0.0


def _convolution_flops(instruction: Any, left: Any, right: Any) -> float:
    numbers = instruction.convolution_dimension_numbers
    output = _array(instruction.shape).dimensions
    met = 1
    for window, from_input, to_output in zip(
        instruction.window.dimensions,
        numbers.input_spatial_dimensions,
        numbers.output_spatial_dimensions,
    ):
        met *= _met(
            left[from_input],
            output[to_output],
            window.size,
            window.stride,
            window.padding_low,
            window.window_dilation or 1,
            window.base_dilation or 1,
        )
    groups = (instruction.feature_group_count or 1) * (instruction.batch_group_count or 1)
    features = (
        left[numbers.input_feature_dimension] * right[numbers.kernel_output_feature_dimension]
    )
    return 2.0 * met * features * left[numbers.input_batch_dimension] / groups


@lru_cache(maxsize=4096)
def _met(
    size: int, output: int, window: int, stride: int, low: int, dilation: int, base: int
) -> int:
    """Returns how many pairs of an output and a kernel position meet an input element."""
    reach = (size - 1) * base + 1
    found = 0
    # The shorter of the two is counted through; the other is arithmetic.
    if base == 1:
        if output <= window:
            for place in range(output):
                found += _within(place * stride - low, dilation, window, reach)
        else:
            for place in range(window):
                found += _within(place * dilation - low, stride, output, reach)
        return found
    for place in range(output):
        for tap in range(window):
            at = place * stride - low + tap * dilation
            found += 0 <= at < reach and at % base == 0
    return found


def _within(start: int, step: int, count: int, end: int) -> int:
    """Returns how many of `start + i * step`, i below `count`, are from 0 to below `end`."""
    first = max(0, math.ceil(-start / step))
    last = min(count - 1, (end - 1 - start) // step)
    return max(0, last - first + 1)


def _array(shape: Any) -> Any:
    return shape.tuple_shapes[0] if shape.tuple_shapes else shape
