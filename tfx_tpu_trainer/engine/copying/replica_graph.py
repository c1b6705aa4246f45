"""One replica's copy of a traced graph, made in stages that end at sums over replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.copying.copy_order import reads_before_changes
from tfx_tpu_trainer.engine.copying.cross_replica_ops import SUM, give_seed_of_core
from tfx_tpu_trainer.engine.copying.graph_copy import makes_handle
from tfx_tpu_trainer.engine.copying.variable_changes import VariableChanges

v1 = tf.compat.v1

SumOverReplicas = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]


@dataclasses.dataclass
class _Stage:
    """The nodes between two rounds of sums.

    Attributes:
        ops: Operations of the traced graph, in the order of their making.
        results: What later stages, sums or the fetches need of them.
        sums: The sums whose addends are known after this stage.
    """

    ops: list[tf.Operation] = dataclasses.field(default_factory=list)
    results: dict[str, tf.Tensor | tf.Operation] = dataclasses.field(default_factory=dict)
    sums: list[tf.Operation] = dataclasses.field(default_factory=list)


class ReplicaGraph:
    """The part of a traced graph that one replica runs, ready to be copied into another graph.

    A runtime that has no `CrossReplicaSum` in its graphs, such as `tf.distribute`, sums between
    stages: all that can run before any sum is the first stage, then come the sums whose addends
    are known, then what they were needed for, and so on, however long sums feed sums. Every
    node is copied exactly once, so that a dropout mask or an assignment is not made twice.
    """

    def __init__(
        self,
        graph: tf.Graph,
        fetches: Sequence[tf.Tensor | tf.Operation],
        *,
        inputs: Collection[tf.Tensor],
        staged: bool,
    ) -> None:
        """Finds the nodes.

        Args:
            graph: A v1 graph that is complete; what is added to it later is not seen.
            fetches: What a copy gives.
            inputs: Tensors that a copy is given; what makes them is not copied.
            staged: Whether sums over replicas end a stage; else they are nodes as any other.

        Raises:
            ValueError: If a stage would have to end inside of a function of the graph, such as
                the body of a loop, or if a sum is of some of the replicas only.
        """
        self._fetches = list(fetches)
        self._inputs = {tensor.name for tensor in inputs}
        self._staged = staged
        graph_def = graph.as_graph_def()
        self._versions, self._library = graph_def.versions, graph_def.library
        self._changes = VariableChanges(graph_def.library)
        if staged:
            _check_functions_have_no_sum(graph_def)
        order = {op.name: index for index, op in enumerate(graph.get_operations())}
        needed = sorted(self._needed_ops(), key=lambda op: order[op.name])
        self.handles = tuple(tensor for op in needed if makes_handle(op) for tensor in op.outputs)
        self._ops = {op.name: op for op in needed if not makes_handle(op)}
        self._stage_of: dict[str, int] = {}
        self._stages = self._cut()

    def copy(
        self,
        replaced: Mapping[str, tf.Tensor],
        *,
        sum_over_replicas: SumOverReplicas | None = None,
        replica: int = 0,
        unchanged: Collection[str] = (),
        name: str = "replica",
    ) -> list[Any]:
        """Copies the nodes into the graph under construction.

        Args:
            replaced: Name of an input or of one of `handles` -> the tensor that stands for it.
            sum_over_replicas: Sums tensors over the replicas; needed for a staged graph with
                sums.
            replica: Number of the replica: seeded random ops differ between replicas.
            unchanged: Names of handles whose variables another replica changes for all: what
                changes them is left out of this copy. Defaults to none.
            name: Name scope of the copies.

        Returns:
            What was fetched: a tensor for a tensor, an operation for an operation.

        Raises:
            ValueError: If the value of an op that would be left out is needed.
        """
        known: dict[str, Any] = dict(replaced)
        for number, stage in enumerate(self._stages):
            scope = f"{name}/stage{number}"
            known.update(self._copy_stage(stage, known, replica, unchanged, scope))
            if stage.sums and sum_over_replicas is not None:
                totals = sum_over_replicas([known[op.inputs[0].name] for op in stage.sums])
                for op, total in zip(stage.sums, totals):
                    known[op.name], known[op.outputs[0].name] = total.op, total
        return [known[fetch.name] for fetch in self._fetches]

    def _needed_ops(self) -> list[tf.Operation]:
        pending = [op for fetch in self._fetches for op in self._made_by([fetch])]
        needed: dict[str, tf.Operation] = {}
        while pending:
            op = pending.pop()
            if op.name not in needed:
                needed[op.name] = op
                pending += self._sources(op)
        return list(needed.values())

    def _sources(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the ops that must be copied before an op."""
        return self._made_by([*self._addends(op), *op.control_inputs])

    def _made_by(self, nodes: Iterable[tf.Tensor | tf.Operation]) -> list[tf.Operation]:
        """Returns the ops that make some nodes; inputs of the copy are made by none."""
        ops = []
        for node in nodes:
            outputs = node.outputs if isinstance(node, tf.Operation) else [node]
            if not any(tensor.name in self._inputs for tensor in outputs):
                ops.append(node if isinstance(node, tf.Operation) else node.op)
        return ops

    def _addends(self, op: tf.Operation) -> list[tf.Tensor]:
        """Returns what an op reads; of a sum, not the input that says which replicas it is of."""
        return list(op.inputs)[:1] if self._ends_stage(op) else list(op.inputs)

    def _ends_stage(self, op: tf.Operation) -> bool:
        return self._staged and op.type == SUM

    def _cut(self) -> list[_Stage]:
        for op in self._ops.values():
            self._find_stage(op)
        stages = [_Stage() for _ in range(max(self._stage_of.values(), default=0) + 1)]
        for op in self._ops.values():
            number = self._stage_of[op.name]
            if self._ends_stage(op):
                _check_sums_all_replicas(op)
                stages[number - 1].sums.append(op)
            else:
                stages[number].ops.append(op)
            for node in [*self._addends(op), *op.control_inputs]:
                self._hand_on(node, number, stages)
        for fetch in self._fetches:
            self._hand_on(fetch, len(stages), stages)
        for stage in stages:
            stage.ops = self._ordered(stage.ops)
        return stages

    def _ordered(self, ops: list[tf.Operation]) -> list[tf.Operation]:
        """Orders a stage's operations as a session runs them."""
        numbers = {op.name: number for number, op in enumerate(ops)}
        sources = [
            [numbers[source.name] for source in self._sources(op) if source.name in numbers]
            for op in ops
        ]
        changes = [self._changes.made_by(op.node_def) for op in ops]
        return [ops[number] for number in reads_before_changes(sources, changes)]

    def _find_stage(self, op: tf.Operation) -> None:
        """Finds how many rounds of sums come before an op's result is there."""
        pending = [op]
        while pending:
            current = pending[-1]
            sources = [source for source in self._sources(current) if source.name in self._ops]
            unknown = [source for source in sources if source.name not in self._stage_of]
            if unknown:
                pending += unknown
                continue
            latest = max((self._stage_of[source.name] for source in sources), default=0)
            self._stage_of[current.name] = latest + self._ends_stage(current)
            pending.pop()

    def _hand_on(
        self, node: tf.Tensor | tf.Operation, reader_stage: int, stages: list[_Stage]
    ) -> None:
        """Notes that a stage's result is read later; a sum's is handed on as it is made."""
        for op in self._made_by([node]):
            stage = self._stage_of.get(op.name, reader_stage)
            if stage < reader_stage and not self._ends_stage(op):
                stages[stage].results[node.name] = node

    def _is_left_out(self, op: tf.Operation, unchanged: Collection[str]) -> bool:
        """Tells whether an op changes one of some variables."""
        if not any(tensor.name in unchanged for tensor in op.inputs):
            return False
        if not self._changes.made_by(op.node_def):
            return False
        readers = {reader.name for tensor in op.outputs for reader in tensor.consumers()}
        if readers & set(self._ops):
            raise ValueError(
                f"{op.name} ({op.type}) changes a variable and gives a value, which "
                f"{sorted(readers & set(self._ops))} read. Under a strategy that has one copy of "
                "each variable, only the first replica changes it: assign outside of conditions, "
                "loops and functions, or use a MirroredStrategy."
            )
        return True

    def _copy_stage(
        self,
        stage: _Stage,
        known: Mapping[str, Any],
        replica: int,
        unchanged: Collection[str],
        name: str,
    ) -> dict[str, Any]:
        if not stage.ops:
            return {}
        here = {op.name for op in stage.ops}
        destination = v1.get_default_graph()
        input_map: dict[str, tf.Tensor] = {}

        def name_of_input(tensor: tf.Tensor) -> str:
            if tensor.name not in known:
                index = tensor.value_index
                return f"{tensor.op.name}:{index}" if index else tensor.op.name
            key = f"given/{tensor.name.replace(':', '_')}"
            input_map[f"{key}:0"] = tf_private.capture(destination, known[tensor.name])
            return key

        def name_of_control(op: tf.Operation) -> str:
            if op.name in here:
                return f"^{op.name}"
            key = f"^done/{op.name}"
            if key not in input_map:
                # Only a tensor can be mapped: this one is there when the op has run.
                with tf.control_dependencies([known[op.name]]):
                    input_map[key] = tf.constant(True)
            return key

        graph_def = v1.GraphDef(library=self._library, versions=self._versions)
        for op in stage.ops:
            if self._is_left_out(op, unchanged):
                node = graph_def.node.add(name=op.name, op="NoOp")
            else:
                node = graph_def.node.add()
                node.CopyFrom(op.node_def)
                node.device = ""
                node.attr.pop("_class", None)
                give_seed_of_core(node, replica)
                del node.input[:]
                node.input.extend(name_of_input(tensor) for tensor in op.inputs)
            waits_for = (c for c in op.control_inputs if c.name in self._ops)
            node.input.extend(name_of_control(control) for control in waits_for)
        copies = tf.graph_util.import_graph_def(
            graph_def, input_map=input_map, return_elements=list(stage.results), name=name
        )
        return dict(zip(stage.results, copies))


def _check_functions_have_no_sum(graph_def: v1.GraphDef) -> None:
    for function in graph_def.library.function:
        for node in function.node_def:
            if node.op == SUM:
                raise ValueError(
                    f"The sum over replicas {node.name!r} stands in the function "
                    f"{function.signature.name!r}, the body of a loop, a condition or a "
                    "tf.function. Under a tf.distribute strategy sums must stand at the top level "
                    "of model_fn."
                )


def _check_sums_all_replicas(op: tf.Operation) -> None:
    groups = tf.get_static_value(op.inputs[1])
    if groups is None or len(groups) != 1:
        shown = "of a tensor" if groups is None else groups.tolist()
        raise ValueError(
            f"{op.name} sums within the groups {shown}: under a tf.distribute strategy a sum is "
            "over all replicas. Leave out group_assignment."
        )
