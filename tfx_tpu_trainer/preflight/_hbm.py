"""Computes bytes in HBM: an array's size, the traffic of a program, and what the program holds at once.

Both come from the optimized program, since the compiler's own statistics are misleading (libtpu 0.0.21). Its "bytes
accessed" includes the chip's fast memory, where most values of a small model stay. Its `temp` counts the gaps between
values twice and omits constants, and its `peak` is that of the fast memory if more happens there than in HBM.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensorflow.compiler.xla import xla_data_pb2

# A wire format, whose field numbers are stable.
from tensorflow.compiler.xla.service import hlo_pb2

_NAMES = {number: name.lower() for name, number in xla_data_pb2.PrimitiveType.items()}
_BITS = {
    **dict.fromkeys(("s4", "u4"), 4),
    **dict.fromkeys(("pred", "s8", "u8"), 8),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
}

# Rows and columns of a tile, the unit of the TPU's registers and memory layout.
SUBLANES, LANES = 8, 128


def element_type(shape: Any) -> str:
    """Returns an array's element type, such as `"f32"`; `"tuple"` for a tuple."""
    return _NAMES.get(shape.element_type, "?")


def bytes_of_elements(count: int, shape: Any) -> int:
    """Returns the bytes of elements, two 4-bit integers per byte; 0 for types without a size."""
    name = element_type(shape)
    return math.ceil(count * _BITS.get(name, 8 if name.startswith("f8") else 0) / 8)


def unpadded_bytes(shape: Any) -> int:
    """Returns an array's or a tuple's bytes without padding."""
    if shape.tuple_shapes:
        return sum(unpadded_bytes(each) for each in shape.tuple_shapes)
    return bytes_of_elements(math.prod(shape.dimensions), shape)


def padded_bytes(shape: Any) -> int:
    """Returns an array's or a tuple's bytes in a program's layout."""
    if shape.tuple_shapes:
        return sum(padded_bytes(each) for each in shape.tuple_shapes)
    # From the slowest to the fastest changing dimension.
    sizes = [shape.dimensions[axis] for axis in reversed(shape.layout.minor_to_major)]
    # Example: f32[100,3] in the layout {1,0:T(8,128)} takes 104 x 128 elements: 53,248 bytes for 1,200. Only the first
    # tile pads. A second one, as in T(8,128)(2,1) for bfloat16, orders the elements within the first, which it divides.
    if shape.layout.tiles:
        tile = shape.layout.tiles[0].dimensions
        for place, size in enumerate(reversed(tile), start=1):
            if place <= len(sizes):
                sizes[-place] = math.ceil(sizes[-place] / size) * size
    return bytes_of_elements(math.prod(sizes), shape)


def in_main_memory(shape: Any) -> bool:
    """Returns whether an array is in HBM instead of on-chip memory."""
    return shape.layout.memory_space == 0


def shape_text(shape: Any) -> str:
    """Formats a shape like XLA, such as `"f32[1024,<=512]{1,0:T(8,128)}"`."""
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


# Names of existing values, or ends of earlier operations: no kernel runs.
NO_KERNEL = frozenset(
    {"add-dependency", "after-all", "bitcast", "constant", "get-tuple-element", "opt-barrier"}
    | {"parameter", "partition-id", "replica-id", "tuple"}
)
# These move nothing. The traffic of kernels outside XLA (custom-call) is unknown.
_FREE = NO_KERNEL | {"custom-call", "iota"}
_READ_A_PART = frozenset({"dynamic-slice", "gather", "slice"})
_WRITE_A_PART = frozenset({"dynamic-update-slice", "scatter"})


class Traffic:
    """A lower bound on the HBM traffic of a program's parts, for the bound on its speed."""

    # Problem: the compiler does not say how many bytes go through HBM. Only where it has put each buffer is known, by
    # the memory space in an array's layout: 0 is HBM.
    # Idea: an instruction reads each of its operands in HBM once and writes its result once; a value on the chip is
    # free. Bytes that an instruction does not have to move are left out: rows of a table that a gather does not read,
    # an array of which only a part is updated in place, padding. A loop counts by its trip count, once if that is
    # unknown, and a conditional by its cheaper branch. Invariant: no part counts more than what the program moves at
    # least, so the sum stays a lower bound. Example: gather(table f32[1000000,64] in HBM, ids s32[32] on the chip) ->
    # f32[32,64] in HBM reads the 32 rows, 8,192 bytes, not the table's 256 MB, and writes 8,192 bytes.

    def __init__(self, module: Any, trip_counts: Mapping[int, int | None]) -> None:
        """Prepares counting with the trip counts of `Loops`."""
        self._computations = {each.id: each for each in module.computations}
        self._trip_counts = trip_counts

    def of(self, computation_id: int) -> int:
        """Returns the bytes of one run of a computation."""
        instructions = self._computations[computation_id].instructions
        by_id = {each.id: each for each in instructions}
        return sum(
            self.of_instruction(each, [by_id[i] for i in each.operand_ids]) for each in instructions
        )

    def of_instruction(self, instruction: Any, operands: Sequence[Any]) -> int:
        """Returns the bytes of one run of an instruction, including its calls."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        if opcode == "conditional":
            return min(self.of(each) for each in instruction.called_computation_ids)
        if opcode == "while":
            trips = self._trip_counts[instruction.id]
            once = sum(self.of(each) for each in instruction.called_computation_ids)
            return once * (1 if trips is None else trips)
        if opcode == "call":
            return sum(self.of(each) for each in instruction.called_computation_ids)
        if opcode == "copy-start":
            # (destination, source, a flag)
            to, source = instruction.shape.tuple_shapes[:2]
            return _in_hbm(to) + _in_hbm(source)
        if opcode == "async-start":
            return self._async_bytes(instruction, operands)
        if opcode.endswith("-start"):
            # A collective, such as a sum over the replicas. The destination of its result depends on its kind; a lower
            # bound may omit it.
            return sum(
                _in_hbm(each.shape) for each in {each.id: each for each in operands}.values()
            )
        if opcode == "fusion":
            return self._fusion_bytes(instruction, operands)
        if opcode in _READ_A_PART:
            read = unpadded_bytes(instruction.shape) if in_main_memory(operands[0].shape) else 0
            return read + _in_hbm(instruction.shape)
        if opcode in _WRITE_A_PART:
            # The rest of the array stays in place.
            update = _update_of(instruction, operands)
            written = unpadded_bytes(update.shape) if in_main_memory(instruction.shape) else 0
            return written + _in_hbm(update.shape)
        read = sum(_in_hbm(each.shape) for each in {each.id: each for each in operands}.values())
        return read + _in_hbm(instruction.shape)

    def _async_bytes(self, started: Any, operands: Sequence[Any]) -> int:
        """Returns the bytes of a slice that is moved asynchronously."""
        # ((source), destination, a flag)
        to = started.shape.tuple_shapes[1]
        for number in started.called_computation_ids:
            called = {each.id: each for each in self._computations[number].instructions}
            root = called[self._computations[number].root_id]
            if root.opcode in _WRITE_A_PART:
                update = _update_of(root, [called[each] for each in root.operand_ids]).shape
                return _in_hbm(update) + (unpadded_bytes(update) if in_main_memory(to) else 0)
        # As many bytes are read as arrive.
        from_hbm = any(in_main_memory(each.shape) for each in operands)
        return (unpadded_bytes(to) if from_hbm else 0) + _in_hbm(to)

    def _fusion_bytes(self, fusion: Any, operands: Sequence[Any]) -> int:
        fused = self._computations[fusion.called_computation_ids[0]]
        by_id = {each.id: each for each in fused.instructions}
        parameters = {
            each.parameter_number: each for each in fused.instructions if each.opcode == "parameter"
        }
        # A fusion may have the same array as several operands, one reading a part and another all of it: it is read
        # from HBM once, and the larger read counts.
        read: dict[int, int] = {}
        for number, operand in enumerate(operands):
            if in_main_memory(operand.shape):
                size = _read_in(fused, by_id, parameters[number])
                read[operand.id] = max(size, read.get(operand.id, 0))
        written = sum(_written(by_id, each) for each in _results(by_id, fused.root_id))
        return sum(read.values()) + written


def _read_in(fused: Any, by_id: Mapping[int, Any], parameter: Any) -> int:
    """Returns the bytes that a fusion reads of one parameter."""
    # A parameter is read in part as long as all its users take slices of it; one user of the whole array ends that. An
    # update in place (the first operand of a dynamic-update-slice) does not read it.
    whole = unpadded_bytes(parameter.shape)
    read = 0
    for user in fused.instructions:
        if parameter.id not in user.operand_ids:
            continue
        if user.opcode in _READ_A_PART and list(user.operand_ids).index(parameter.id) == 0:
            read += unpadded_bytes(user.shape)
        elif user.opcode not in _WRITE_A_PART or user.operand_ids[0] != parameter.id:
            return whole
    return min(read, whole)


def _results(by_id: Mapping[int, Any], root_id: int) -> Iterator[Any]:
    root = by_id[root_id]
    if root.opcode == "tuple":
        yield from (by_id[each] for each in root.operand_ids)
    else:
        yield root


def _written(by_id: Mapping[int, Any], result: Any) -> int:
    """Returns the bytes that a fusion writes of one result."""
    if not in_main_memory(result.shape) or result.opcode == "parameter":
        return 0
    if result.opcode in _WRITE_A_PART:
        return unpadded_bytes(_update_of(result, [by_id[i] for i in result.operand_ids]).shape)
    return unpadded_bytes(result.shape)


def _update_of(instruction: Any, operands: Sequence[Any]) -> Any:
    # dynamic-update-slice(array, update, start...), scatter(array..., indices, update...)
    return operands[1] if instruction.opcode == "dynamic-update-slice" else operands[-1]


def _in_hbm(shape: Any) -> int:
    """Returns the bytes of a shape's arrays in HBM."""
    if shape.tuple_shapes:
        return sum(_in_hbm(each) for each in shape.tuple_shapes)
    return unpadded_bytes(shape) if in_main_memory(shape) else 0


_HBM = 0
_Event = hlo_pb2.HeapSimulatorTrace.Event


class HbmBuffers(NamedTuple):
    """Buffers in HBM, except the program itself."""

    bytes: int  # including gaps
    gap_bytes: int  # the part without a value when most values are alive: fragmentation


def read_buffers(program: bytes) -> HbmBuffers | None:
    """Reads a program's buffer assignment, which XProf's memory viewer shows, too; `None` without one."""
    assignment = hlo_pb2.HloProto.FromString(program).buffer_assignment
    if not assignment.buffer_allocations:
        return None
    in_hbm = [
        each
        for each in assignment.buffer_allocations
        # Thread-local buffers, such as the scalars of a reduction's body, stay in registers.
        if each.color == _HBM and not each.is_thread_local
    ]
    sizes = {each.id: each.size for each in assignment.logical_buffers}
    # A trace is found by any one of its values, here the first: all of them are in one allocation. The trace's own
    # number for its allocation may be outdated.
    allocations = {part.logical_buffer_id: each for each in in_hbm for part in each.assigned}
    gaps = 0
    for trace in assignment.heap_simulator_traces:
        shared = allocations.get(trace.events[0].buffer_id) if trace.events else None
        if shared is not None:
            gaps += max(0, shared.size - _most_alive(trace, sizes))
    return HbmBuffers(bytes=sum(each.size for each in in_hbm), gap_bytes=gaps)


def _most_alive(trace: Any, sizes: Mapping[int, int]) -> int:
    """Returns the largest number of bytes of values alive at once."""
    # A value that shares another's buffer, such as the result of an op in place, takes no additional bytes; the buffer
    # is freed by its last user.
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
