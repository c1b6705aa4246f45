"""How often loops turn, and the operations of convolutions and products, in programs written by hand."""

import itertools
import math

import pytest
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tests.preflight.test_hbm import Program, several, shape
from tfx_tpu_trainer.preflight._hlo_cost import Loops, matrix_flops

INTEGER = xla_data_pb2.ShapeProto(element_type=xla_data_pb2.S32)
TRUTH = xla_data_pb2.ShapeProto(element_type=xla_data_pb2.PRED)


class LoopProgram(Program):
    """A program with loops that count."""

    def number(self, value, *, within=None):
        made = self.add("constant", INTEGER, within=within)
        made.literal.s32s.append(value)
        return made

    def element(self, whole, index, *, within=None, of=INTEGER):
        return self.add("get-tuple-element", of, whole, within=within, tuple_index=index)

    def loop(self, start, *, end=None, step=1, direction="LT", within=None, also=None):
        """A loop over (counter, end): `also` adds to the condition; without `end`, data ends it."""
        state = several(INTEGER, INTEGER)
        body, condition = self.computation(), self.computation()
        given = self.add("parameter", state, within=body, parameter_number=0)
        counter = self.element(given, 0, within=body)
        more = self.add("add", INTEGER, counter, self.number(step, within=body), within=body)
        kept = self.element(given, 1, within=body)
        inside = body
        self.add("tuple", state, more, kept, within=body)
        given = self.add("parameter", state, within=condition, parameter_number=0)
        left, right = (self.element(given, place, within=condition) for place in (0, 1))
        goes_on = self.add(
            "compare", TRUTH, left, right, within=condition, comparison_direction=direction
        )
        if also is not None:
            self.add("and", TRUTH, also(condition), goes_on, within=condition)
        if end is None:
            end = self.add("parameter", INTEGER, within=within, parameter_number=9)
        begins = start if not isinstance(start, int) else self.number(start, within=within)
        ends = end if not isinstance(end, int) else self.number(end, within=within)
        before = self.add("tuple", state, begins, ends, within=within)
        made = self.add("while", state, before, within=within, calls=[body, condition])
        return made, inside

    @property
    def loops(self):
        return Loops(self.module)


@pytest.fixture
def program():
    return LoopProgram()


@pytest.mark.parametrize(
    ("start", "end", "step", "direction", "turns"),
    [(0, 12, 1, "LT", 12), (3, 12, 4, "LT", 3), (5, 0, -1, "GE", 6), (7, 7, 1, "LT", 0)],
)
def test_a_loop_turns_until_its_counter_ends(program, start, end, step, direction, turns):
    loop, body = program.loop(start, end=end, step=step, direction=direction)
    assert program.loops.trip_counts[loop.id] == turns
    assert program.loops.runs[body.id] == turns or turns == 0


def test_a_loop_that_ends_on_data_counts_once(program):
    loop, body = program.loop(0)
    assert program.loops.trip_counts[loop.id] is None
    assert program.loops.runs[body.id] == 1


def test_an_unknown_half_of_a_condition_leaves_the_turns_unknown(program):
    def unknown(condition):
        return program.add("parameter", TRUTH, within=condition, parameter_number=7)

    loop, _ = program.loop(0, end=12, also=unknown)
    assert program.loops.trip_counts[loop.id] is None


def test_a_condition_that_always_holds_beside_the_counter_changes_nothing(program):
    def holds(condition):
        made = program.add("constant", TRUTH, within=condition)
        made.literal.preds.append(True)
        return made

    loop, _ = program.loop(0, end=12, also=holds)
    assert program.loops.trip_counts[loop.id] == 12


def test_a_loop_may_end_where_another_one_has_counted_to(program):
    first, _ = program.loop(0, end=5)
    second, _ = program.loop(0, end=program.element(first, 0))
    assert program.loops.trip_counts == {first.id: 5, second.id: 5}


def test_loops_in_loops_multiply_and_a_count_with_each_run_once_stays(program):
    _, outer = program.loop(0, end=3)
    _, inner = program.loop(0, end=4, within=outer)
    # What is added last is the root: the outer loop hands on its counter again.
    state = several(INTEGER, INTEGER)
    outer.root_id = next(
        each.id for each in outer.instructions if each.shape == state and each.opcode == "tuple"
    )
    loops = program.loops
    assert loops.runs[outer.id] == 3 and loops.runs[inner.id] == 12
    assert loops.calls[outer.id] == loops.calls[inner.id] == 1


def test_bytes_through_hbm_count_in_each_turn(program):
    _, body = program.loop(0, end=6)
    root = body.root_id
    value = program.add("parameter", shape(10), within=body, parameter_number=1)
    program.add("negate", shape(10), value, within=body)
    body.root_id = root
    # The counters are moved, too, 4 bytes each: for the add and for the compare.
    assert program.bytes == 6 * (4 * 2 * 10 + 4 * 3 + 4 * 2 + 1)


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
