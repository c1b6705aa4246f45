"""Computes the cost of a compiled program's instructions: operations, bytes, and number of runs.

XLA's own cost analysis runs the body of a loop once. TensorFlow's loops over a fixed number of steps count in scalars
that begin as constants, so running only those scalars gives the number of trips. The trips of a loop that ends on data
are unknown before it runs, so it counts once.
"""

import collections
import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tfx_tpu_trainer.preflight._hbm import NO_KERNEL, Traffic, unpadded_bytes

# A longer loop counts once: a model's step has none, and counting takes microseconds per trip.
_MOST_TRIPS = 100_000

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
# These pass on a scalar: copied, reshaped or converted. Nothing is rounded, since floats are never read (`_constant`).
_HAND_ON = frozenset(
    {"bitcast", "broadcast", "convert", "copy", "copy-done", "copy-start", "opt-barrier", "reshape"}
)
_UNKNOWN = None


class Loops:
    """How often the loops and the computations of a program run."""

    def __init__(self, module: Any) -> None:
        """Counts the trips of all loops."""
        self._computations = {each.id: each for each in module.computations}
        # Number of a `while` instruction -> how often its body runs in one run of the computation that it is in; `None`
        # if that depends on data.
        self.trip_counts: dict[int, int | None] = {}
        # Number of a computation -> how often it runs in one run of the program. Computations that are not called are
        # left out; branches of a conditional count as if both ran.
        self.runs: collections.Counter[int] = collections.Counter()
        # The same with the body of each loop run once, as XLA's cost analysis counts.
        self.calls: collections.Counter[int] = collections.Counter()
        for computation in module.computations:
            for instruction in computation.instructions:
                if instruction.opcode == "while":
                    self.trip_counts[instruction.id] = self._count(computation, instruction)
        self._run(module.entry_computation_id, 1, 1)

    def _run(self, computation_id: int, times: int, calls: int) -> None:
        self.runs[computation_id] += times
        self.calls[computation_id] += calls
        for instruction in self._computations[computation_id].instructions:
            # A loop without trips counts once, like one with unknown trips: XLA's own cost analysis has counted its
            # body once, and `flops_of_more_trips` only adds to that.
            trips = 1
            if instruction.opcode == "while":
                trips = self.trip_counts[instruction.id] or 1
            for called in dict.fromkeys(instruction.called_computation_ids):
                self._run(called, times * trips, calls)

    def _count(self, computation: Any, loop: Any) -> int | None:
        before = _Scalars(self._computations, computation, {}).tuple_of(loop.operand_ids[0])
        return _run_loop(self._computations, loop, before)[0]


def _run_loop(computations: Mapping[int, Any], loop: Any, values: Any) -> tuple[int | None, Any]:
    """Returns a loop's number of trips and the values after it; `None` if they depend on data."""
    # Problem: HLO has no trip count. A loop is a condition and a body, computations of one tuple of values.
    # Idea: the values that decide are scalars that begin as constants, so the loop is run with nothing but them; each
    # array is "unknown". What depends on an unknown value is unknown, and so is the count if the condition is.
    # Invariant: a value is right or unknown, never guessed.
    # Example: (i=0, n=12, x=unknown) with the condition i < n and the body (i + 1, n, x @ w) stops at i=12: 12 trips.
    # The loop over the gradients begins at the i that this one ends with, so the values after it are returned too.
    if len(loop.called_computation_ids) < 2:
        return None, _UNKNOWN
    # The body comes first, as XLA writes it.
    body, condition = (computations[each] for each in loop.called_computation_ids[:2])
    for trip in range(_MOST_TRIPS):
        goes_on = _Scalars(computations, condition, {0: values}).of(condition.root_id)
        if goes_on is _UNKNOWN:
            return None, _UNKNOWN
        if not goes_on:
            return trip, values
        values = _Scalars(computations, body, {0: values}).tuple_of(body.root_id)
    return None, _UNKNOWN


class _Scalars:
    """The scalars of one run of a computation, computed on demand.

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
        """Returns a tuple's values; only scalars are computed."""
        instruction = self._by_id[number]
        if instruction.opcode != "tuple":
            return self.of(number)
        # Arrays are not followed: no count depends on one, and following them would walk the whole model once per trip.
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
            return _run_loop(self._computations, instruction, self.tuple_of(operands[0]))[1]
        if opcode in ("call", "fusion"):
            called = self._computations[instruction.called_computation_ids[0]]
            arguments = {place: self.of(each) for place, each in enumerate(operands)}
            return _Scalars(self._computations, called, arguments).of(called.root_id)
        # Before the general case, in which an unknown operand makes the result unknown: here one operand may decide.
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
    # One side may decide alone: a false one decides `and`, a true one `or`. Example: with `found` unknown, `i < n and
    # not found` is false as soon as i reaches n.
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


# The TPU's compiler writes matrix products as convolutions, too. As in XLA's own cost analysis, a convolution counts
# pairs of an input and a kernel element that meet: an image's padding and a dilated one's gaps are not multiplied.


def matrix_flops(instruction: Any, by_id: Mapping[int, Any]) -> float:
    """Returns the operations of a convolution or matrix product; 0 for other instructions."""
    if instruction.opcode == "dot":
        left = by_id[instruction.operand_ids[0]].shape.dimensions
        contracted = instruction.dot_dimension_numbers.lhs_contracting_dimensions
        inner = math.prod(left[axis] for axis in contracted)
        return 2.0 * math.prod(_array(instruction.shape).dimensions) * inner
    if instruction.opcode == "convolution":
        left, right = (by_id[number].shape.dimensions for number in instruction.operand_ids)
        return _convolution_flops(instruction, left, right)
    return 0.0


def _convolution_flops(instruction: Any, left: Any, right: Any) -> float:
    numbers = instruction.convolution_dimension_numbers
    output = _array(instruction.shape).dimensions
    met = 1
    for window, from_input, to_output in zip(
        instruction.window.dimensions,
        numbers.input_spatial_dimensions,
        numbers.output_spatial_dimensions,
    ):
        met *= _met(
            left[from_input],
            output[to_output],
            window.size,
            window.stride,
            window.padding_low,
            window.window_dilation or 1,
            window.base_dilation or 1,
        )
    # Each of g groups multiplies 1/g of the input's features by 1/g of the kernel's outputs: g * (in / g) * (out / g)
    # pairs are in * out / g.
    groups = (instruction.feature_group_count or 1) * (instruction.batch_group_count or 1)
    features = (
        left[numbers.input_feature_dimension] * right[numbers.kernel_output_feature_dimension]
    )
    return 2.0 * met * features * left[numbers.input_batch_dimension] / groups


@lru_cache(maxsize=4096)
def _met(
    size: int, output: int, window: int, stride: int, low: int, dilation: int, base: int
) -> int:
    """Returns the number of pairs of an output and a kernel position that meet an input element."""
    # Example: a row of 3 with one element of padding on each side and a window of 3 has 3 outputs. Seven of 9 pairs
    # meet an element; the first output's first and the last one's last meet padding.
    reach = (size - 1) * base + 1
    found = 0
    # A dilated input (`base` > 1) has holes, which only the slow loop at the end considers. The shorter of the two is
    # enumerated; the other is arithmetic.
    if base == 1:
        if output <= window:
            for place in range(output):
                found += _within(place * stride - low, dilation, window, reach)
        else:
            for place in range(window):
                found += _within(place * dilation - low, stride, output, reach)
        return found
    for place in range(output):
        for tap in range(window):
            at = place * stride - low + tap * dilation
            found += 0 <= at < reach and at % base == 0
    return found


def _within(start: int, step: int, count: int, end: int) -> int:
    """Returns how many of `start + i * step`, for i below `count`, are from 0 to below `end`."""
    first = max(0, math.ceil(-start / step))
    last = min(count - 1, (end - 1 - start) // step)
    return max(0, last - first + 1)


def _array(shape: Any) -> Any:
    return shape.tuple_shapes[0] if shape.tuple_shapes else shape


_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpCost:
    """The cost of one run of an instruction on one device."""

    name: str  # the compiler's name, such as `"fusion.12"`
    opcode: str  # XLA's opcode, such as `"fusion"`
    op_name: str  # its TensorFlow op's name; may be empty
    op_type: str  # that op's type; may be empty
    runs: int  # runs of it in one run of the program
    flops: float  # operations of the matrix units
    hbm_bytes: int  # bytes read from and written to HBM
    collective_bytes: int  # bytes sent to other devices in sums and gathers
    # Whether it overlaps others: it starts a copy or collective that a later instruction waits for.
    overlaps: bool


def op_costs(module: Any, loops: Loops) -> list[OpCost]:
    """Yields the costs of a program's instructions, in order."""
    return list(_Walk(module, loops).through(module.entry_computation_id, 1))


class _Walk:
    def __init__(self, module: Any, loops: Loops) -> None:
        self._computations = {each.id: each for each in module.computations}
        self._loops = loops
        self._traffic = Traffic(module, loops.trip_counts)
        self._fused: dict[int, float] = {}

    def through(self, computation_id: int, runs: int) -> Iterator[OpCost]:
        instructions = self._computations[computation_id].instructions
        by_id = {each.id: each for each in instructions}
        for instruction in instructions:
            opcode = instruction.opcode
            called = instruction.called_computation_ids
            if opcode in NO_KERNEL or opcode.endswith("-done"):
                continue
            if opcode == "while":
                trips = self._loops.trip_counts[instruction.id]
                for each in called:
                    yield from self.through(each, runs * (1 if trips is None else trips))
            elif opcode == "conditional":
                # An estimate takes the more expensive side, the bound the cheaper one.
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
    # By prefix, so `all-reduce-start` counts; `all-reduce-done` never gets here.
    if not instruction.opcode.startswith(_COLLECTIVES):
        return 0
    return sum(unpadded_bytes(each.shape) for each in operands)
