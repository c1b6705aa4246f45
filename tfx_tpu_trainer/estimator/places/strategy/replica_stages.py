"""Copies a traced graph for one replica of a strategy, in stages that end at sums over replicas."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier, makes_handle
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

SumOverReplicas = Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]


@dataclasses.dataclass
class _Stage:
    """The nodes between two rounds of sums."""

    # The nodes that later stages, sums or the fetches read.
    results: dict[str, tf.Tensor | tf.Operation] = dataclasses.field(default_factory=dict)
    # The sums whose addends are known after this stage.
    sums: list[tf.Operation] = dataclasses.field(default_factory=list)


# How a graph is cut at its sums. The problem: TensorFlow's strategies sum with a call in Python,
# between two parts of a replica's function, and have no op for it that a copied graph could
# contain. The idea: an op's stage is the number of sums on the longest path to it. With a gradient
# that is divided by the number of rows of all replicas,
#   n = sum(rows),  g = sum(gradient(loss) / n),  w -= g
# stage 0 has gradient(loss) and rows, then n is summed; stage 1 divides, then g is summed; stage 2
# updates w.
# The invariants: each node is copied in exactly one stage, and later ones read that copy
# (`results`), so a dropout mask or an assignment is not made twice; and all replicas make the
# same sums in the same order, as each waits for the others.
class ReplicaStages:
    """The part of a traced graph that one replica runs, cut at the sums over replicas."""

    def __init__(
        self,
        copier: GraphCopier,
        fetches: Sequence[tf.Tensor | tf.Operation],
        *,
        inputs: Collection[tf.Tensor],
    ) -> None:
        self._copier = copier
        self._fetches = list(fetches)
        self._inputs = {tensor.name for tensor in inputs}
        _check_functions_have_no_sum(copier.graph)
        needed = sorted(upstream(self._fetches, given=self._inputs), key=copier.order)
        self.handles = tuple(tensor for op in needed if makes_handle(op) for tensor in op.outputs)
        self._ops = {op.name: op for op in needed if not makes_handle(op)}
        read = (tensor.name for op in needed for tensor in op.inputs)
        self._read = self._inputs & {*read, *(fetch.name for fetch in self._fetches)}
        self._stage_of: dict[str, int] = {}
        self._stages = self._cut()

    def copy(
        self,
        replaced: Mapping[str, tf.Tensor],
        *,
        sum_over_replicas: SumOverReplicas,
        replica: int = 0,
        unchanged: Collection[str] = (),
    ) -> list[Any]:
        """Copies the nodes into the graph under construction."""
        left_out = {op.name for op in self._ops.values() if self._is_left_out(op, unchanged)}
        known: dict[str, Any] = dict(replaced)
        for number, stage in enumerate(self._stages):
            copies = self._copier.copy_replica(
                list(stage.results.values()),
                replaced=known,
                replica=replica,
                left_out=left_out,
                name=f"replica/stage{number}",
            )
            known.update(zip(stage.results, copies))
            if stage.sums:
                totals = sum_over_replicas([known[op.inputs[0].name] for op in stage.sums])
                for op, total in zip(stage.sums, totals):
                    known[op.name], known[op.outputs[0].name] = total.op, total
        return [known[fetch.name] for fetch in self._fetches]

    def reads(self, name: str) -> bool:
        """Returns whether a copy reads one of the inputs, given its name."""
        return name in self._read

    def _sources(self, op: tf.Operation) -> list[tf.Operation]:
        """Returns the ops that must be copied before an op."""
        return self._made_by([*_addends(op), *op.control_inputs])

    def _made_by(self, nodes: Iterable[tf.Tensor | tf.Operation]) -> list[tf.Operation]:
        """Returns the ops that make some nodes, without inputs of the copy."""
        ops = []
        for node in nodes:
            outputs = node.outputs if isinstance(node, tf.Operation) else [node]
            if not any(tensor.name in self._inputs for tensor in outputs):
                ops.append(node if isinstance(node, tf.Operation) else node.op)
        return ops

    def _cut(self) -> list[_Stage]:
        for op in self._ops.values():
            self._find_stage(op)
        stages = [_Stage() for _ in range(max(self._stage_of.values(), default=0) + 1)]
        for op in self._ops.values():
            number = self._stage_of[op.name]
            if op.type == SUM:
                _check_sums_all_replicas(op)
                stages[number - 1].sums.append(op)
            for node in [*_addends(op), *op.control_inputs]:
                self._hand_on(node, number, stages)
        for fetch in self._fetches:
            self._hand_on(fetch, len(stages), stages)
        return stages

    def _find_stage(self, op: tf.Operation) -> None:
        """Finds how many rounds of sums come before an op's result."""
        # Without recursion: an unrolled network is deeper than Python's stack.
        pending = [op]
        while pending:
            current = pending[-1]
            sources = [source for source in self._sources(current) if source.name in self._ops]
            unknown = [source for source in sources if source.name not in self._stage_of]
            if unknown:
                pending += unknown
                continue
            latest = max((self._stage_of[source.name] for source in sources), default=0)
            self._stage_of[current.name] = latest + (current.type == SUM)
            pending.pop()

    def _hand_on(
        self, node: tf.Tensor | tf.Operation, reader_stage: int, stages: list[_Stage]
    ) -> None:
        """Records that a later stage reads a node; `copy` itself passes on the results of sums."""
        for op in self._made_by([node]):
            stage = self._stage_of.get(op.name, reader_stage)
            if stage < reader_stage and op.type != SUM:
                stages[stage].results[node.name] = node

    def _is_left_out(self, op: tf.Operation, unchanged: Collection[str]) -> bool:
        """Returns whether an op changes one of some variables."""
        if not any(tensor.name in unchanged for tensor in op.inputs):
            return False
        if not self._copier.is_change(op):
            return False
        readers = {reader.name for tensor in op.outputs for reader in tensor.consumers()}
        if readers & set(self._ops):
            raise ValueError(
                f"{op.name} ({op.type}) changes a variable and returns a value, which "
                f"{sorted(readers & set(self._ops))} read. Under a strategy that has one copy of "
                "each variable, only the first replica changes it: assign outside of conditions, "
                "loops and functions, or use a MirroredStrategy."
            )
        return True


def _addends(op: tf.Operation) -> list[tf.Tensor]:
    """Returns an op's inputs; for a sum, its addend without the groups of replicas."""
    return list(op.inputs)[:1] if op.type == SUM else list(op.inputs)


def _check_functions_have_no_sum(graph: tf.Graph) -> None:
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op == SUM:
                raise ValueError(
                    f"The sum over replicas {node.name!r} is in the function "
                    f"{function.signature.name!r}, the body of a loop, a condition or a "
                    "tf.function. Under a tf.distribute strategy, sums must be at the top level "
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
