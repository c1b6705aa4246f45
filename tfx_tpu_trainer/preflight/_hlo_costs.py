"""What each instruction of a compiled program costs: operations, bytes, and how often it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfx_tpu_trainer.preflight._hbm_traffic import Traffic
from tfx_tpu_trainer.preflight._hlo_flops import matrix_flops
from tfx_tpu_trainer.preflight._hlo_loops import Loops
from tfx_tpu_trainer.preflight._hlo_shapes import unpadded_bytes

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)

# Names for what is there, or the end of what has begun before: no kernel runs.
_NO_KERNEL = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpCost:
    """What an instruction costs on one device, in one run of the instruction.

    Attributes:
        name: The compiler's, such as `"fusion.12"`.
        opcode: XLA's, such as `"fusion"`.
        op_name: Name of the TensorFlow op that it comes from; may be empty.
        op_type: Type of that op; may be empty.
        runs: How often it runs in one run of the program.
        flops: Operations of the matrix units.
        hbm_bytes: Bytes read from HBM and written there.
        collective_bytes: Bytes that it gives to other devices' sums and gathers.
        overlaps: Whether it runs while others do: it starts a copy or a collective that a later
            instruction waits for.
    """

    name: str
    opcode: str
    op_name: str
    op_type: str
    runs: int
    flops: float
    hbm_bytes: int
    collective_bytes: int
    overlaps: bool


def op_costs(module: Any) -> tuple[list[OpCost], int]:
    """Walks through the instructions that a program runs, in order."""
    loops = Loops(module)
    walk = _Walk(module, loops)
    unknown = sum(turns is None for turns in loops.turns.values())
    return list(walk.through(module.entry_computation_id, 1)), unknown


class _Walk:
    def __init__(self, module: Any, loops: Loops) -> None:
        self._computations = {each.id: each for each in module.computations}
        self._loops = loops
        self._traffic = Traffic(module, loops)
        self._fused: dict[int, float] = {}

    def through(self, computation_id: int, runs: int) -> Iterator[OpCost]:
        instructions = self._computations[computation_id].instructions
        by_id = {each.id: each for each in instructions}
        for instruction in instructions:
            opcode = instruction.opcode
            called = instruction.called_computation_ids
            if opcode in _NO_KERNEL or opcode.endswith("-done"):
                continue
            if opcode == "while":
                turns = self._loops.turns[instruction.id]
                for each in called:
                    yield from self.through(each, runs * (1 if turns is None else turns))
            elif opcode == "conditional":
                # An estimate takes the dearer side, where the bound takes the cheaper.
                yield from self.through(max(called, key=self._traffic.of), runs)
            elif opcode == "call":
                for each in called:
                    yield from self.through(each, runs)
            else:
                yield self._cost(instruction, by_id, runs)

    def _cost(self, instruction: Any, by_id: Mapping[int, Any], runs: int) -> OpCost:
        operands = [by_id[each] for each in instruction.operand_ids]
        return OpCost(
            name=instruction.name,
            opcode=instruction.opcode,
            op_name=instruction.metadata.op_name,
            op_type=instruction.metadata.op_type,
            runs=runs,
            flops=self._flops(instruction, by_id),
            hbm_bytes=self._traffic.of_instruction(instruction, operands),
            collective_bytes=_collective_bytes(instruction, operands),
            overlaps=instruction.opcode.endswith("-start"),
        )

    def _flops(self, instruction: Any, by_id: Mapping[int, Any]) -> float:
        if instruction.opcode not in ("fusion", "async-start"):
            return matrix_flops(instruction, by_id)
        return sum(map(self._fused_flops, instruction.called_computation_ids))

    def _fused_flops(self, computation_id: int) -> float:
        if computation_id not in self._fused:
            instructions = self._computations[computation_id].instructions
            by_id = {each.id: each for each in instructions}
            self._fused[computation_id] = sum(self._flops(each, by_id) for each in instructions)
        return self._fused[computation_id]


def _collective_bytes(instruction: Any, operands: Sequence[Any]) -> int:
    if not instruction.opcode.startswith(_COLLECTIVES):
        return 0
    return sum(unpadded_bytes(each.shape) for each in operands)
