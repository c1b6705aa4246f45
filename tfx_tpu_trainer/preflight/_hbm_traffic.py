"""How many bytes a compiled program moves through HBM.

The compiler's own "bytes accessed" counts what a kernel reads and writes in the chip's fast memory
too, where most values of a small model stay: several times what goes through HBM. An upper bound on
speed needs the latter, so this looks at where the compiler has put each buffer, and leaves out what
may not be moved: rows of a table that a gather does not read, padding, and what kernels outside of XLA
do inside. The body of a loop counts once, of a branch the cheaper side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfx_tpu_trainer.preflight._hlo_loops import Loops
from tfx_tpu_trainer.preflight._hlo_shapes import in_main_memory, unpadded_bytes

# They move nothing: names for what is there already, or the end of what has begun before.
_FREE = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "custom-call",
        "get-tuple-element",
        "iota",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
_READ_A_PART = frozenset({"dynamic-slice", "gather", "slice"})
_WRITE_A_PART = frozenset({"dynamic-update-slice", "scatter"})


def hbm_traffic(module: Any) -> int:
    """Adds up what a program reads from HBM and writes there."""
    return Traffic(module, Loops(module)).of(module.entry_computation_id)


class Traffic:
    """The bytes through HBM of a program's parts."""

    def __init__(self, module: Any, loops: Loops) -> None:
        """Prepares to count."""
        self._computations = {each.id: each for each in module.computations}
        self._loops = loops

    def of(self, computation_id: int) -> int:
        """Returns the bytes of a computation's run."""
        instructions = self._computations[computation_id].instructions
        by_id = {each.id: each for each in instructions}
        return sum(
            self.of_instruction(each, [by_id[i] for i in each.operand_ids]) for each in instructions
        )

    def of_instruction(self, instruction: Any, operands: Sequence[Any]) -> int:
        """Returns the bytes of an instruction's run, those of what it calls included."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        if opcode == "conditional":
            return min(self.of(each) for each in instruction.called_computation_ids)
        if opcode == "while":
            turns = self._loops.turns[instruction.id]
            once = sum(self.of(each) for each in instruction.called_computation_ids)
            return once * (1 if turns is None else turns)
        if opcode == "call":
            return sum(self.of(each) for each in instruction.called_computation_ids)
        if opcode == "copy-start":
            # (where to, where from, a flag)
            to, source = instruction.shape.tuple_shapes[:2]
            return _in_hbm(to) + _in_hbm(source)
        if opcode == "async-start":
            return self._async_bytes(instruction, operands)
        if opcode.endswith("-start"):
            # Of a sum over the replicas; where its result goes differs from one to the next.
            return sum(
                _in_hbm(each.shape) for each in {each.id: each for each in operands}.values()
            )
        if opcode == "fusion":
            return self._fusion_bytes(instruction, operands)
        if opcode in _READ_A_PART:
            read = unpadded_bytes(instruction.shape) if in_main_memory(operands[0].shape) else 0
            return read + _in_hbm(instruction.shape)
        if opcode in _WRITE_A_PART:
            # What is not updated stays where it is.
            update = _update_of(instruction, operands)
            written = unpadded_bytes(update.shape) if in_main_memory(instruction.shape) else 0
            return written + _in_hbm(update.shape)
        read = sum(_in_hbm(each.shape) for each in {each.id: each for each in operands}.values())
        return read + _in_hbm(instruction.shape)

    def _async_bytes(self, started: Any, operands: Sequence[Any]) -> int:
        """Returns the bytes of a slice that is moved while other things run."""
        # ((where from), where to, a flag)
        to = started.shape.tuple_shapes[1]
        for number in started.called_computation_ids:
            called = {each.id: each for each in self._computations[number].instructions}
            root = called[self._computations[number].root_id]
            if root.opcode in _WRITE_A_PART:
                update = _update_of(root, [called[each] for each in root.operand_ids]).shape
                return _in_hbm(update) + (unpadded_bytes(update) if in_main_memory(to) else 0)
        # What is read is as large as what arrives.
        from_hbm = any(in_main_memory(each.shape) for each in operands)
        return (unpadded_bytes(to) if from_hbm else 0) + _in_hbm(to)

    def _fusion_bytes(self, fusion: Any, operands: Sequence[Any]) -> int:
        fused = self._computations[fusion.called_computation_ids[0]]
        by_id = {each.id: each for each in fused.instructions}
        parameters = {
            each.parameter_number: each for each in fused.instructions if each.opcode == "parameter"
        }
        read: dict[int, int] = {}
        for number, operand in enumerate(operands):
            if in_main_memory(operand.shape):
                size = _read_in(fused, by_id, parameters[number])
                read[operand.id] = max(size, read.get(operand.id, 0))
        written = sum(_written(by_id, each) for each in _results(by_id, fused.root_id))
        return sum(read.values()) + written


def _read_in(fused: Any, by_id: Mapping[int, Any], parameter: Any) -> int:
    """Returns the bytes that a fusion reads of one of its parameters."""
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
    """Returns the bytes that a fusion writes of one of its results."""
    if not in_main_memory(result.shape) or result.opcode == "parameter":
        return 0
    if result.opcode in _WRITE_A_PART:
        return unpadded_bytes(_update_of(result, [by_id[i] for i in result.operand_ids]).shape)
    return unpadded_bytes(result.shape)


def _update_of(instruction: Any, operands: Sequence[Any]) -> Any:
    # dynamic-update-slice(array, update, start...), scatter(array..., indices, update...)
    return operands[1] if instruction.opcode == "dynamic-update-slice" else operands[-1]


def _in_hbm(shape: Any) -> int:
    """Returns the bytes of those arrays of a shape that are in HBM."""
    if shape.tuple_shapes:
        return sum(_in_hbm(each) for each in shape.tuple_shapes)
    return unpadded_bytes(shape) if in_main_memory(shape) else 0
