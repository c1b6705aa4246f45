"""What a program holds in HBM, by the buffer assignment that the TPU's compiler dumps.

The compiler's own statistics can't be used as they are (libtpu 0.0.21): `temp` counts the gaps between
values twice and leaves constants out, and `peak` is that of the chip's fast memory where more happens there
than in HBM. The buffer assignment is also what XProf's memory viewer shows, so that both have one number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# A wire format: its fields keep their numbers from release to release.
from tensorflow.compiler.xla.service import hlo_pb2

_HBM = 0
_Event = hlo_pb2.HeapSimulatorTrace.Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class HbmBuffers:
    """Buffers in HBM, the program itself left out.

    Attributes:
        bytes: All of them, gaps included.
        gap_bytes: Part of them that holds no value when most values are alive: fragmentation.
    """

    bytes: int
    gap_bytes: int


def read_buffers(program: bytes) -> HbmBuffers | None:
    """Reads a program's buffers."""
    assignment = hlo_pb2.HloProto.FromString(program).buffer_assignment
    if not assignment.buffer_allocations:
        return None
    in_hbm = [
        each
        for each in assignment.buffer_allocations
        # Thread-local: scalars of a reduction's body, for one, which stay in registers.
        if each.color == _HBM and not each.is_thread_local
    ]
    sizes = {each.id: each.size for each in assignment.logical_buffers}
    # By its values, since the number that a trace has for its allocation may be of an earlier numbering.
    allocations = {part.logical_buffer_id: each for each in in_hbm for part in each.assigned}
    gaps = 0
    for trace in assignment.heap_simulator_traces:
        shared = allocations.get(trace.events[0].buffer_id) if trace.events else None
        if shared is not None:
            gaps += max(0, shared.size - _most_alive(trace, sizes))
    return HbmBuffers(bytes=sum(each.size for each in in_hbm), gap_bytes=gaps)


def _most_alive(trace: Any, sizes: Mapping[int, int]) -> int:
    """Returns the bytes of the values that are alive at once, at most."""
    owners: dict[int, int] = {}
    users: dict[int, int] = {}
    alive = most = 0
    for event in trace.events:
        if event.kind == _Event.SHARE_WITH:
            owner = owners.get(event.share_with_canonical_id, event.share_with_canonical_id)
            owners[event.buffer_id] = owner
            users[owner] += 1
            continue
        owner = owners.get(event.buffer_id, event.buffer_id)
        if event.kind == _Event.ALLOC:
            users[owner] = 1
            alive += sizes[owner]
            most = max(most, alive)
        else:
            users[owner] -= 1
            alive -= 0 if users[owner] else sizes[owner]
    return most
