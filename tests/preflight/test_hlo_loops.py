"""How often loops turn, in programs that are written here by hand as TensorFlow and XLA write them."""

from __future__ import annotations

import pytest
from tensorflow.compiler.xla import xla_data_pb2

from tests.preflight.test_hbm_traffic import Program, several, shape
from tfx_tpu_trainer.preflight._hlo_cost import Loops

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
    assert program.loops.turns[loop.id] == turns
    assert program.loops.runs[body.id] == turns or turns == 0


def test_a_loop_that_ends_on_data_counts_once(program):
    loop, body = program.loop(0)
    assert program.loops.turns[loop.id] is None
    assert program.loops.runs[body.id] == 1


def test_an_unknown_half_of_a_condition_leaves_the_turns_unknown(program):
    def unknown(condition):
        return program.add("parameter", TRUTH, within=condition, parameter_number=7)

    loop, _ = program.loop(0, end=12, also=unknown)
    assert program.loops.turns[loop.id] is None


def test_a_condition_that_always_holds_beside_the_counter_changes_nothing(program):
    def holds(condition):
        made = program.add("constant", TRUTH, within=condition)
        made.literal.preds.append(True)
        return made

    loop, _ = program.loop(0, end=12, also=holds)
    assert program.loops.turns[loop.id] == 12


def test_a_loop_may_end_where_another_one_has_counted_to(program):
    first, _ = program.loop(0, end=5)
    second, _ = program.loop(0, end=program.element(first, 0))
    assert program.loops.turns == {first.id: 5, second.id: 5}


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
    # The counters are moved as well, 4 bytes each: of the add, of the compare.
    assert program.bytes == 6 * (4 * 2 * 10 + 4 * 3 + 4 * 2 + 1)
