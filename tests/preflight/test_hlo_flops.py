"""Operations of convolutions and products, against counting each pair that meets."""

from __future__ import annotations

import itertools
import math

import pytest
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tfx_tpu_trainer.preflight._hlo_cost import matrix_flops


def _array(*sizes):
    return hlo_pb2.HloInstructionProto(
        shape=xla_data_pb2.ShapeProto(element_type=xla_data_pb2.F32, dimensions=sizes)
    )


def _convolution(size, window, *, stride=1, low=0, high=0, dilation=1, base=1, rows=4, groups=1):
    """A convolution of [rows, size, 6] with [window, 6 / groups, 10]: one spatial dimension."""
    reach = (size - 1) * base + 1 + low + high
    output = (reach - ((window - 1) * dilation + 1)) // stride + 1
    made = _array(rows, output, 10)
    made.opcode = "convolution"
    made.operand_ids.extend([1, 2])
    made.feature_group_count = groups
    numbers = made.convolution_dimension_numbers
    numbers.input_batch_dimension, numbers.input_feature_dimension = 0, 2
    numbers.kernel_input_feature_dimension, numbers.kernel_output_feature_dimension = 1, 2
    numbers.input_spatial_dimensions.append(1)
    numbers.kernel_spatial_dimensions.append(0)
    numbers.output_spatial_dimensions.append(1)
    made.window.dimensions.add(
        size=window,
        stride=stride,
        padding_low=low,
        padding_high=high,
        window_dilation=dilation,
        base_dilation=base,
    )
    met = sum(
        0 <= (at := place * stride - low + tap * dilation) <= (size - 1) * base and at % base == 0
        for place, tap in itertools.product(range(output), range(window))
    )
    operands = {1: _array(rows, size, 6), 2: _array(window, 6 // groups, 10)}
    return made, operands, 2 * met * rows * (6 // groups) * 10


@pytest.mark.parametrize(
    "given",
    [
        {"size": 16, "window": 3},
        {"size": 16, "window": 3, "low": 1, "high": 1},
        {"size": 15, "window": 7, "stride": 2, "low": 3, "high": 3},
        # A gradient of the input of a strided convolution, and one of its kernel.
        {"size": 8, "window": 3, "low": 1, "high": 2, "base": 2},
        {"size": 16, "window": 8, "low": 1, "high": 1, "dilation": 2},
        {"size": 16, "window": 14, "low": 1, "high": 1},
        {"size": 9, "window": 3, "groups": 2},
        {"size": 5, "window": 5, "low": -1, "high": 1},
    ],
)
def test_a_convolution_counts_the_pairs_that_meet(given):
    made, operands, flops = _convolution(**given)
    assert matrix_flops(made, operands) == flops > 0


def test_a_product_of_matrices_counts_two_for_each_pair():
    made = _array(8, 32, 16)
    made.opcode = "dot"
    made.operand_ids.extend([1, 2])
    made.dot_dimension_numbers.lhs_contracting_dimensions.append(2)
    made.dot_dimension_numbers.lhs_batch_dimensions.append(0)
    assert matrix_flops(made, {1: _array(8, 32, 64), 2: _array(8, 64, 16)}) == 2 * math.prod(
        (8, 32, 64, 16)
    )


def test_other_instructions_have_none():
    made = _array(8)
    made.opcode = "add"
    assert matrix_flops(made, {}) == 0
