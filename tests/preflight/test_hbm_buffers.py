"""Buffers of a program: hand-made assignments, whose sums are known, and the compiler's own of a tiny step."""

from __future__ import annotations

import pytest
from tensorflow.compiler.xla.service import hlo_pb2

from tests.preflight.lowered import CHECK_ONLY, lower_layers
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._hbm import HbmBuffers, read_buffers

HBM, VMEM = 0, 1
ALLOC, FREE, SHARE_WITH = 0, 1, 2


def program(*, allocations, buffers=(), traces=()) -> bytes:
    """An optimized program with a buffer assignment.

    Args:
        allocations: Size and memory of each, and whether it is of one thread.
        buffers: Number of a value -> size and memory.
        traces: Events of each: kind, value, and what it shares. Its values are in the first allocation of
            their memory.
    """
    proto = hlo_pb2.HloProto()
    assignment = proto.buffer_assignment
    for index, (size, color, is_thread_local) in enumerate(allocations):
        assignment.buffer_allocations.add(
            index=index, size=size, color=color, is_thread_local=is_thread_local
        )
    for number, (size, color) in dict(buffers).items():
        assignment.logical_buffers.add(id=number, size=size, color=color)
    for number, (_, color) in dict(buffers).items():
        holder = next(each for each in assignment.buffer_allocations if each.color == color)
        holder.assigned.add(logical_buffer_id=number)
    for events in traces:
        # As libtpu 0.0.21 writes it: a number of before the allocations were numbered anew.
        trace = assignment.heap_simulator_traces.add(buffer_allocation_index=len(allocations))
        for kind, number, *shared in events:
            trace.events.add(kind=kind, buffer_id=number, share_with_canonical_id=sum(shared))
    return proto.SerializeToString()


def test_what_is_in_hbm_adds_up():
    made = program(
        allocations=[(512, HBM, False), (4096, VMEM, False), (64, HBM, True), (8, HBM, False)]
    )
    assert read_buffers(made) == HbmBuffers(bytes=520, gap_bytes=0)


def test_gaps_are_what_the_values_that_are_alive_leave():
    events = [(ALLOC, 1), (ALLOC, 2), (FREE, 1), (ALLOC, 3), (FREE, 2), (FREE, 3)]
    sizes = {1: (100, HBM), 2: (50, HBM), 3: (80, HBM)}
    made = program(allocations=[(200, HBM, False)], buffers=sizes, traces=[events])
    # 150 with the first two, 130 with the last two.
    assert read_buffers(made) == HbmBuffers(bytes=200, gap_bytes=50)


def test_values_that_share_a_buffer_take_it_once_and_until_the_last_of_them():
    events = [(ALLOC, 1), (SHARE_WITH, 2, 1), (FREE, 1), (ALLOC, 3), (FREE, 2), (FREE, 3)]
    sizes = {1: (100, HBM), 2: (100, HBM), 3: (80, HBM)}
    made = program(allocations=[(200, HBM, False)], buffers=sizes, traces=[events])
    assert read_buffers(made) == HbmBuffers(bytes=200, gap_bytes=20)


def test_a_trace_of_another_memory_says_nothing_of_hbm():
    sizes = {1: (9000, VMEM)}
    made = program(
        allocations=[(512, HBM, False), (9999, VMEM, False)],
        buffers=sizes,
        traces=[[(ALLOC, 1), (FREE, 1)]],
    )
    assert read_buffers(made) == HbmBuffers(bytes=512, gap_bytes=0)


def test_a_program_without_buffers():
    assert read_buffers(hlo_pb2.HloProto().SerializeToString()) is None


@pytest.mark.parametrize("rows", [64, 4096])
def test_a_step_needs_the_buffers_of_its_program_and_its_code(rows):
    (step,) = compile_steps([lower_layers([64, 8], rows=rows, columns=32)], "v5e:1x1", CHECK_ONLY)
    found = read_buffers(step.program)
    assert step.problem is None and found is not None
    assert step.need_bytes == found.bytes + step.memory.generated_code_bytes
    assert step.memory.gap_bytes == found.gap_bytes < step.memory.temp_bytes
