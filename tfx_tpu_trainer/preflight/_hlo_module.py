"""Reads a program in HLO, and edits it where names or shardings are missing."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# A wire format, whose field numbers are stable.
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tfx_tpu_trainer.estimator.extending import shardings
from tfx_tpu_trainer.preflight._hbm import (
    Traffic,
    in_main_memory,
    padded_bytes,
    shape_text,
    unpadded_bytes,
)
from tfx_tpu_trainer.preflight._hlo_cost import Loops, OpCost, matrix_flops, op_costs
from tfx_tpu_trainer.preflight._results import Allocation, Collective

# XLA's ops with which devices read each other.
_SUMS = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all"})
_COLLECTIVES = _SUMS | {"collective-permute", "collective-broadcast", "ragged-all-to-all"}
_STARTS = frozenset({"all-reduce-start", "all-gather-start"})

# These take no additional memory.
_VIEWS = frozenset({"bitcast", "get-tuple-element", "tuple", "parameter", "constant", "while"})


class HloModule:
    """A program as TensorFlow lowered it, or as the TPU's compiler optimized it."""

    def __init__(self, serialized: bytes) -> None:
        """Reads a serialized `HloModuleProto`."""
        self._module = hlo_pb2.HloModuleProto.FromString(serialized)

    @classmethod
    def of_optimized(cls, serialized: bytes) -> HloModule:
        """Reads the compiler's result, a `HloModuleProtoWithConfig` with the program in field 1.

        `HloProto` has the program in that field too, and a class in every TensorFlow.
        """
        module = hlo_pb2.HloProto.FromString(serialized).hlo_module
        return cls(module.SerializeToString())

    @functools.cached_property
    def _loops(self) -> Loops:
        return Loops(self._module)

    def serialized(self) -> bytes:
        """Returns the program as a serialized `HloModuleProto`."""
        return self._module.SerializeToString(deterministic=True)

    def instructions(self) -> Iterator[Any]:
        """Yields all computations' instructions."""
        for computation in self._module.computations:
            yield from computation.instructions

    def entry(self) -> Any:
        """Returns the computation that runs."""
        wanted = self._module.entry_computation_id
        return next(each for each in self._module.computations if each.id == wanted)

    def by_id(self) -> dict[int, Any]:
        """Returns the instructions by number."""
        return {instruction.id: instruction for instruction in self.instructions()}

    def name_parameters(self, names: Sequence[str]) -> None:
        """Gives the program's inputs TensorFlow's names, for the compiler's messages."""
        parameters = [each for each in self.entry().instructions if each.opcode == "parameter"]
        # If the counts differ, a name might belong to another input.
        if len(parameters) == len(names):
            for parameter in parameters:
                parameter.metadata.op_name = names[parameter.parameter_number]

    def shard_inputs(self, input_shardings: Sequence[Any]) -> None:
        """Shards the program's inputs over a replica's cores.

        Results that take the place of an input are sharded like it; others are whole on each core.
        """
        parameters = [each for each in self.entry().instructions if each.opcode == "parameter"]
        if len(parameters) != len(input_shardings):
            raise ValueError(
                f"The program has {len(parameters)} inputs, but the step has {len(input_shardings)}, so the "
                "partitioned inputs can't be identified."
            )
        whole = shardings.replicated()
        for parameter in parameters:
            parameter.sharding.CopyFrom(input_shardings[parameter.parameter_number] or whole)
        root = next(each for each in self.entry().instructions if each.id == self.entry().root_id)
        # A variable that a step updates is an input and, aliased to it, a result: one buffer, which must be sharded in
        # the same way.
        results = [whole] * len(root.shape.tuple_shapes)
        for entry in self._module.input_output_alias.entries:
            results[entry.output_shape_index[0]] = input_shardings[entry.parameter_number] or whole
        if results:
            root.sharding.CopyFrom(
                xla_data_pb2.OpSharding(type=xla_data_pb2.OpSharding.TUPLE, tuple_shardings=results)
            )

    def make_readable_by_older_compilers(self) -> None:
        """Rewrites new forms of TensorFlow 2.21 into the old ones.

        Its instructions have 64-bit numbers with the computation's number in the upper half, at which older compilers
        abort; and its sums have their replicas in a separate message.
        """
        instructions = list(self.instructions())
        # The new numbers are unique in the whole module instead of in one computation: `by_id` relies on that.
        numbers = {each.id: number for number, each in enumerate(instructions, start=1)}
        for computation in self._module.computations:
            computation.root_id = numbers[computation.root_id]
        for instruction in instructions:
            instruction.id = numbers[instruction.id]
            for references in (instruction.operand_ids, instruction.control_predecessor_ids):
                references[:] = [numbers[each] for each in references]
            devices = getattr(instruction, "collective_device_list", None)
            if devices is not None and not instruction.replica_groups:
                instruction.replica_groups.extend(devices.replica_groups)

    def collective_bytes(self) -> int:
        """Returns one device's bytes that go into sums over the replicas in one run."""
        return sum(
            max(1, self._loops.runs[computation.id]) * unpadded_bytes(each.shape)
            for computation in self._module.computations
            for each in computation.instructions
            if each.opcode in _SUMS or each.opcode in _STARTS
        )

    def collectives(self) -> tuple[Collective, ...]:
        """Sums the ops with which devices read each other, by kind, those with the most bytes first.

        In an optimized program the compiler has cut the model for the cores of a replica, merged small sums and removed
        unnecessary ones. The body of a loop counts once.
        """
        by_id = self.by_id()
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        sizes: collections.Counter[tuple[str, str]] = collections.Counter()
        for instruction in self.instructions():
            kind = instruction.opcode.removesuffix("-start")
            if kind not in _COLLECTIVES:
                continue
            # XLA numbers the channels of ops between a program's partitions, but not of sums over replicas.
            key = kind, "cores" if instruction.channel_id > 0 else "replicas"
            counts[key] += 1
            given = sum(unpadded_bytes(by_id[i].shape) for i in instruction.operand_ids)
            sizes[key] += max(given, _result_bytes(instruction))
        return tuple(
            Collective(kind=kind, between=between, count=counts[kind, between], bytes=size)
            for (kind, between), size in sizes.most_common()
        )

    def hbm_bytes(self) -> int:
        """Returns the bytes that an optimized program moves through HBM in one run."""
        return Traffic(self._module, self._loops.trip_counts).of(self._module.entry_computation_id)

    def costs(self) -> tuple[list[OpCost], int]:
        """Returns the costs of an optimized program's instructions, and the number of loops that count once."""
        unknown = sum(trips is None for trips in self._loops.trip_counts.values())
        return op_costs(self._module, self._loops), unknown

    def flops_of_more_trips(self) -> float:
        """Returns the matrix operations of all loop trips except the first, which XLA's count includes."""
        loops, found = self._loops, 0.0
        for computation in self._module.computations:
            more = loops.runs[computation.id] - loops.calls[computation.id]
            # A fusion's body is a computation with its own runs, so its products count here, and the fusion
            # instruction adds nothing.
            if more > 0:
                by_id = {each.id: each for each in computation.instructions}
                found += more * sum(matrix_flops(each, by_id) for each in computation.instructions)
        return found

    def parameters(self, *, of_one_core: bool = False) -> list[Allocation]:
        """Returns the program's inputs, variables included, largest first."""
        return _largest_first(
            _allocation(each, _part(each) if of_one_core else each.shape, "argument")
            for each in self.entry().instructions
            if each.opcode == "parameter"
        )

    def allocations(self, *, temp_bytes: int) -> list[Allocation]:
        """Returns the allocations in HBM, largest first.

        The results of a step's instructions share memory over time, and the program does not show how: each is listed
        by itself, and together they exceed the program's need.
        """
        results = self._results()
        found = self.parameters()
        for instruction in self.entry().instructions:
            if instruction.opcode in _VIEWS or instruction.opcode.endswith("-done"):
                continue
            if instruction.id in results:
                continue
            for shape in _made_by(instruction):
                # Anything larger than all temporary memory has no buffer in it.
                size = padded_bytes(shape)
                if in_main_memory(shape) and 0 < size <= temp_bytes:
                    found.append(_allocation(instruction, shape, "temp"))
        found += self._outputs(results)
        return _largest_first(found)

    def _results(self) -> set[int]:
        """Returns the numbers of the instructions whose values the program returns."""
        by_id = self.by_id()
        pending, found = [self.entry().root_id], set()
        while pending:
            number = pending.pop()
            if number in found:
                continue
            found.add(number)
            if by_id[number].opcode in ("tuple", "get-tuple-element", "bitcast", "copy-done"):
                pending += by_id[number].operand_ids
        return found

    def _outputs(self, results: set[int]) -> Iterator[Allocation]:
        """Yields the outputs that do not replace an input."""
        root = self.by_id()[self.entry().root_id]
        entries = self._module.input_output_alias.entries
        in_place = {tuple(entry.output_shape_index) for entry in entries}
        if root.opcode != "tuple":
            shapes = root.shape.tuple_shapes or [root.shape]
            numbers = [root.id] * len(shapes)
        else:
            shapes, numbers = root.shape.tuple_shapes, list(root.operand_ids)
        by_id = self.by_id()
        for index, (shape, number) in enumerate(zip(shapes, numbers)):
            if (index,) not in in_place and unpadded_bytes(shape):
                yield _allocation(by_id[number], shape, "output")


def bytes_between_replicas(found: Iterable[Collective]) -> int:
    """Returns one device's bytes that go into sums over the replicas."""
    sizes = {each.kind: each.bytes for each in found if each.between == "replicas"}
    # A sum may have been split into these two, which would count it twice.
    if "reduce-scatter" in sizes:
        sizes.pop("all-gather", None)
    return sum(sizes.values())


def _result_bytes(instruction: Any) -> int:
    shape = instruction.shape
    starts = instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start"
    if starts and len(shape.tuple_shapes) > 1:
        # (operand, result, flags)
        shape = shape.tuple_shapes[1]
    return unpadded_bytes(shape)


def _made_by(instruction: Any) -> Sequence[Any]:
    """Returns the shapes of the arrays that an instruction makes."""
    shapes = instruction.shape.tuple_shapes or [instruction.shape]
    # These tuples also hold the moved value, which exists already.
    if instruction.opcode == "copy-start":
        return shapes[:1]
    if instruction.opcode == "async-start":
        return shapes[1:2]
    return shapes


def _part(instruction: Any) -> Any:
    """Returns the shape of one core's part of an array."""
    if not instruction.HasField("sharding"):
        return instruction.shape
    part = xla_data_pb2.ShapeProto()
    part.CopyFrom(instruction.shape)
    counts = shardings.parts(instruction.sharding, len(part.dimensions))
    part.dimensions[:] = [-(-size // count) for size, count in zip(part.dimensions, counts)]
    return part


def _allocation(instruction: Any, shape: Any, category: str) -> Allocation:
    return Allocation(
        bytes=padded_bytes(shape),
        op_name=instruction.metadata.op_name or instruction.name,
        shape=shape_text(shape),
        category=category,
        unpadded_bytes=unpadded_bytes(shape),
    )


def _largest_first(allocations: Any) -> list[Allocation]:
    return sorted(allocations, key=lambda each: -each.bytes)
