"""Bytes through HBM, counted in programs that are written here by hand as the compiler writes them."""

from __future__ import annotations

import itertools

import pytest
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tfx_tpu_trainer.preflight._hbm import Traffic
from tfx_tpu_trainer.preflight._hlo_cost import Loops

HBM, ON_CHIP = 0, 1


def shape(*sizes, space=HBM):
    made = xla_data_pb2.ShapeProto(element_type=xla_data_pb2.F32, dimensions=sizes)
    made.layout.memory_space = space
    return made


def several(*shapes):
    return xla_data_pb2.ShapeProto(element_type=xla_data_pb2.TUPLE, tuple_shapes=shapes)


class Program:
    """A program with one entry computation, and others that it calls."""

    def __init__(self):
        self.module = hlo_pb2.HloModuleProto()
        self.entry = self.module.computations.add(id=1)
        self.module.entry_computation_id = 1
        self.numbers = itertools.count(1)

    def computation(self):
        return self.module.computations.add(id=100 + next(self.numbers))

    def add(self, opcode, of, *operands, within=None, calls=(), **values):
        within = self.entry if within is None else within
        made = within.instructions.add(
            id=next(self.numbers),
            opcode=opcode,
            shape=of,
            operand_ids=[each.id for each in operands],
            called_computation_ids=[each.id for each in calls],
            **values,
        )
        within.root_id = made.id
        return made

    def fusion(self, of, operands, body):
        fused = self.computation()
        parameters = [
            self.add("parameter", each.shape, within=fused, parameter_number=number)
            for number, each in enumerate(operands)
        ]
        body(fused, *parameters)
        return self.add("fusion", of, *operands, calls=[fused])

    @property
    def bytes(self):
        return Traffic(self.module, Loops(self.module).turns).of(self.module.entry_computation_id)


@pytest.fixture
def program():
    return Program()


def test_operands_are_read_and_results_written(program):
    left = program.add("parameter", shape(8, 16))
    right = program.add("parameter", shape(16, 4))
    program.add("dot", shape(8, 4), left, right)
    assert program.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4)


def test_an_operand_twice_is_read_once(program):
    value = program.add("parameter", shape(100))
    program.add("multiply", shape(100), value, value)
    assert program.bytes == 4 * (100 + 100)


def test_what_stays_on_the_chip_does_not_count(program):
    value = program.add("parameter", shape(100))
    flag = shape(space=2)
    started = program.add("copy-start", several(shape(100, space=ON_CHIP), shape(100), flag), value)
    moved = program.add("copy-done", shape(100, space=ON_CHIP), started)
    squared = program.add("multiply", shape(100, space=ON_CHIP), moved, moved)
    program.add("add", shape(100, space=ON_CHIP), squared, moved)
    assert program.bytes == 4 * 100


def test_a_slice_is_moved_alone(program):
    value = program.add("parameter", shape(1000))
    moved = several(several(shape(1000)), shape(10, space=ON_CHIP), shape(space=2))
    program.add("async-done", shape(10, space=ON_CHIP), program.add("async-start", moved, value))
    assert program.bytes == 4 * 10


def test_a_slice_that_is_written_while_other_things_run_counts_alone(program):
    table = program.add("parameter", shape(1000))
    update = program.add("parameter", shape(10, space=ON_CHIP))
    wrapped = program.computation()
    inner = [program.add("parameter", each.shape, within=wrapped) for each in (table, update)]
    program.add("dynamic-update-slice", shape(1000), *inner, within=wrapped)
    moved = several(several(shape(1000), update.shape), shape(1000), shape(space=2))
    started = program.add("async-start", moved, table, update, calls=[wrapped])
    program.add("async-done", shape(1000), started)
    assert program.bytes == 4 * 10


def test_a_sum_over_the_replicas_reads_what_it_sums(program):
    value = program.add("parameter", shape(100))
    started = program.add("all-reduce-start", several(shape(100), shape(100)), value)
    program.add("all-reduce-done", shape(100), started)
    assert program.bytes == 4 * 100


def test_of_a_table_the_rows_that_are_looked_up_count(program):
    table = program.add("parameter", shape(1_000_000, 8))
    rows = program.add("parameter", shape(64))

    def look_up(fused, table, rows):
        found = program.add("gather", shape(64, 8), table, rows, within=fused)
        program.add("multiply", shape(64, 8), found, found, within=fused)

    program.fusion(shape(64, 8), [table, rows], look_up)
    assert program.bytes == 4 * (64 * 8 + 64 + 64 * 8)


def test_of_an_update_in_place_the_part_that_changes_counts(program):
    table = program.add("parameter", shape(1_000_000, 8))
    update = program.add("parameter", shape(64, 8))
    start = program.add("constant", shape())

    def put(fused, table, update, start):
        program.add("dynamic-update-slice", table.shape, table, update, start, within=fused)

    program.fusion(shape(1_000_000, 8), [table, update, start], put)
    # The update is read and written; so is the place, 4 bytes.
    assert program.bytes == 4 * (64 * 8 + 64 * 8 + 1)


def test_a_fusion_with_several_results_writes_each(program):
    value = program.add("parameter", shape(100))

    def two(fused, value):
        first = program.add("negate", shape(100), value, within=fused)
        second = program.add("exponential", shape(100, space=ON_CHIP), value, within=fused)
        program.add("tuple", several(first.shape, second.shape), first, second, within=fused)

    program.fusion(several(shape(100), shape(100, space=ON_CHIP)), [value], two)
    assert program.bytes == 4 * (100 + 100)


def test_a_loop_counts_once_and_a_branch_its_cheaper_side(program):
    body, cheap, dear = (program.computation() for _ in range(3))
    for within, size in ((body, 10), (cheap, 20), (dear, 30)):
        value = program.add("parameter", shape(size), within=within)
        program.add("negate", shape(size), value, within=within)
    value = program.add("parameter", shape(10))
    program.add("while", shape(10), value, calls=[body])
    program.add("conditional", shape(20), value, calls=[cheap, dear])
    assert program.bytes == 4 * 2 * (10 + 20)
