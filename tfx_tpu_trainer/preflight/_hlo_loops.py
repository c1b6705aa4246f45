"""How often each computation of a program runs, as far as the program itself says it.

XLA's own cost analysis runs the body of a loop once. TensorFlow's loops over a fixed number of steps
count in scalars that begin as constants, so running nothing but those scalars tells how many times
the body runs. A loop that ends on data is not known before it runs, and counts once.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# A longer loop counts once: a step of a model has none, and counting takes microseconds a turn.
_MOST_TURNS = 100_000

_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "xor": operator.xor,
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}
_HAND_ON = frozenset(
    {"bitcast", "broadcast", "convert", "copy", "copy-done", "copy-start", "opt-barrier", "reshape"}
)
_UNKNOWN = None


class Loops:
    """The loops of a program.

    Example:
    ```python
    loops = Loops(module)
    loops.turns[while_instruction.id]  # 12, or None where that depends on data
    loops.runs[computation.id]         # how often it runs in one run of the program
    ```

    Attributes:
        turns: Number of a `while` instruction -> how often its body runs in one run of the
            computation that it is in; `None` where only the data tells.
        runs: Number of a computation -> how often it runs in one run of the program. Those that
            are not called are left out; branches of a conditional count as if both ran.
        calls: The same with the body of each loop run once, as XLA's cost analysis counts.
    """

    def __init__(self, module: Any) -> None:
        """Counts."""
        self._computations = {each.id: each for each in module.computations}
        self.turns: dict[int, int | None] = {}
        self.runs: collections.Counter[int] = collections.Counter()
        self.calls: collections.Counter[int] = collections.Counter()
        for computation in module.computations:
            for instruction in computation.instructions:
                if instruction.opcode == "while":
                    self.turns[instruction.id] = self._count(computation, instruction)
        self._run(module.entry_computation_id, 1, 1)

    def _run(self, computation_id: int, times: int, calls: int) -> None:
        self.runs[computation_id] += times
        self.calls[computation_id] += calls
        for instruction in self._computations[computation_id].instructions:
            turns = 1
            if instruction.opcode == "while":
                turns = self.turns[instruction.id] or 1
            for called in dict.fromkeys(instruction.called_computation_ids):
                self._run(called, times * turns, calls)

    def _count(self, computation: Any, loop: Any) -> int | None:
        before = _Scalars(self._computations, computation, {}).tuple_of(loop.operand_ids[0])
        return _turned(self._computations, loop, before)[0]


def _turned(computations: Mapping[int, Any], loop: Any, values: Any) -> tuple[int | None, Any]:
    """Returns how often a loop's body runs and the values after it; `None` where data tells."""
    if len(loop.called_computation_ids) < 2:
        return None, _UNKNOWN
    # The body comes first, as XLA writes it.
    body, condition = (computations[each] for each in loop.called_computation_ids[:2])
    for turn in range(_MOST_TURNS):
        goes_on = _Scalars(computations, condition, {0: values}).of(condition.root_id)
        if goes_on is _UNKNOWN:
            return None, _UNKNOWN
        if not goes_on:
            return turn, values
        values = _Scalars(computations, body, {0: values}).tuple_of(body.root_id)
    return None, _UNKNOWN


class _Scalars:
    """The scalars of one run of a computation, computed where they are requested.

    A value is a number, a truth value, a list of the values of a tuple, or `None`, unknown.
    """

    def __init__(
        self, computations: Mapping[int, Any], computation: Any, arguments: Mapping[int, Any]
    ) -> None:
        self._computations = computations
        self._by_id = {each.id: each for each in computation.instructions}
        self._arguments = arguments
        self._known: dict[int, Any] = {}

    def of(self, number: int) -> Any:
        if number not in self._known:
            self._known[number] = self._compute(self._by_id[number])
        return self._known[number]

    def tuple_of(self, number: int) -> Any:
        """Returns the values of a tuple, of which only the scalars are computed."""
        instruction = self._by_id[number]
        if instruction.opcode != "tuple":
            return self.of(number)
        return [
            self.of(each) if _is_scalar(self._by_id[each].shape) else _UNKNOWN
            for each in instruction.operand_ids
        ]

    def _compute(self, instruction: Any) -> Any:
        opcode, operands = instruction.opcode, instruction.operand_ids
        if opcode == "constant":
            return _constant(instruction)
        if opcode == "parameter":
            return self._arguments.get(instruction.parameter_number)
        if opcode == "tuple":
            return self.tuple_of(instruction.id)
        if opcode == "get-tuple-element":
            values = self.of(operands[0])
            return values[instruction.tuple_index] if isinstance(values, list) else _UNKNOWN
        if opcode in _HAND_ON:
            return self.of(operands[0])
        if opcode == "while":
            # What a loop has counted to is where the one over its gradients begins.
            return _turned(self._computations, instruction, self.tuple_of(operands[0]))[1]
        if opcode in ("call", "fusion"):
            called = self._computations[instruction.called_computation_ids[0]]
            arguments = {place: self.of(each) for place, each in enumerate(operands)}
            return _Scalars(self._computations, called, arguments).of(called.root_id)
        if opcode in ("and", "or"):
            return _logical(opcode, [self.of(each) for each in operands])
        return self._of_known(instruction, [self.of(each) for each in operands])

    def _of_known(self, instruction: Any, values: Sequence[Any]) -> Any:
        if any(value is _UNKNOWN or isinstance(value, list) for value in values):
            return _UNKNOWN
        if instruction.opcode == "compare":
            return _COMPARISONS[instruction.comparison_direction](*values)
        if instruction.opcode == "not":
            return not values[0]
        if instruction.opcode == "select":
            return values[1] if values[0] else values[2]
        combined = _ARITHMETIC.get(instruction.opcode)
        return combined(*values) if combined and len(values) == 2 else _UNKNOWN


def _logical(opcode: str, values: Sequence[Any]) -> Any:
    # One side decides, whatever the other is: "no" an and, "yes" an or.
    deciding = opcode == "or"
    if any(value is not _UNKNOWN and bool(value) is deciding for value in values):
        return deciding
    return _UNKNOWN if _UNKNOWN in values else not deciding


def _constant(instruction: Any) -> Any:
    literal = instruction.literal
    for numbers in (literal.s32s, literal.s64s, literal.u32s, literal.u64s, literal.preds):
        if len(numbers) == 1:
            return numbers[0]
    return _UNKNOWN


def _is_scalar(shape: Any) -> bool:
    return not shape.dimensions and not shape.tuple_shapes
