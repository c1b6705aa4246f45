"""Where each op of an exported metagraph would run: on the TPU, or on the host and why there."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import graph_nodes, is_outside, ops_on_tpu

_CALL = "TPUPartitionedCall"
_BATCHES = "BatchFunction"

# They pass values on, or hold a place for them: no work that a TPU could take from the host.
_NO_WORK = frozenset(
    {"Const", "Identity", "IdentityN", "NoOp", "Placeholder", "PlaceholderWithDefault"}
    | {"VarHandleOp", _BATCHES, *ops_on_tpu.SCAFFOLDING}
)


@dataclasses.dataclass(frozen=True)
class OpPlacement:
    """The ops that a metagraph's signatures compute with, by the place where they run.

    Ops of a function count once in each place from which it is called; variables, saving, restoring
    and passing a value on do not count.

    Attributes:
        on_tpu: Number of nodes of each op type that the TPU runs.
        outside_compilation: The same of those that the model keeps on the host by
            `outside_compilation`.
        before: The same of those on the host that feed the TPU computation, or pass it by: the
            receiver's parsing, Transform's graph.
        after: Nodes on the host that work on what came from the TPU, as `op 'name'`.
        beside: Nodes on the host in the function that the TPU call runs, as `op 'name'`.
        refused: Nodes on the TPU that no TPU can run, as `op 'name' which ...`.
        batch_sizes: The sizes that the model's own batching pads batches up to.
    """

    on_tpu: Mapping[str, int]
    outside_compilation: Mapping[str, int]
    before: Mapping[str, int]
    after: tuple[str, ...]
    beside: tuple[str, ...]
    refused: tuple[str, ...]
    batch_sizes: tuple[int, ...]

    @property
    def num_on_tpu(self) -> int:
        """Number of nodes that the TPU runs."""
        return sum(self.on_tpu.values())

    @property
    def num_on_host(self) -> int:
        """Number of nodes that the host runs."""
        asked_for = sum(self.outside_compilation.values()) + sum(self.before.values())
        return asked_for + len(self.after) + len(self.beside)


def place_ops(meta_graph: tf.compat.v1.MetaGraphDef) -> OpPlacement:
    """Finds out where the ops of a metagraph run.

    Args:
        meta_graph: A metagraph of a SavedModel's proto. Where it has signatures, only what they
            need counts.

    Returns:
        The placement; without a TPU computation all ops are `before` it.
    """
    walk = _Walk(graph_nodes.functions_of(meta_graph.graph_def.library))
    walk.graph(_needed(meta_graph))
    return walk.placement()


class _Walk:
    """Goes through nodes and the functions that they call, each once, and notes each node where it runs."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._with_tpu = graph_nodes.functions_with(functions, _is_of_tpu)
        self._on_tpu: collections.Counter[str] = collections.Counter()
        self._outside: collections.Counter[str] = collections.Counter()
        self._before: collections.Counter[str] = collections.Counter()
        self._after: list[str] = []
        self._beside: list[str] = []
        self._refused: list[str] = []
        self._batch_sizes: tuple[int, ...] = ()
        # The functions gone through, by place.
        self._seen: dict[str, set[str]] = collections.defaultdict(set)
        self._calls: list[Any] = []

    def placement(self) -> OpPlacement:
        return OpPlacement(
            on_tpu=dict(sorted(self._on_tpu.items())),
            outside_compilation=dict(sorted(self._outside.items())),
            before=dict(sorted(self._before.items())),
            after=tuple(self._after),
            beside=tuple(self._beside),
            refused=tuple(self._refused),
            batch_sizes=self._batch_sizes,
        )

    def graph(self, nodes: Iterable[Any]) -> None:
        """Notes the nodes of a graph, and of the functions that the host starts from it."""
        self._host_nodes(nodes)
        while self._calls:
            node = self._calls.pop()
            name = node.attr["f"].func.name
            if name in self._functions and name not in self._seen[node.op]:
                self._seen[node.op].add(name)
                self._host_nodes(self._functions[name].node_def, in_tpu_call=node.op == _CALL)

    def _host_nodes(self, nodes: Iterable[Any], *, in_tpu_call: bool = False) -> None:
        """Notes nodes of one graph or function that the host starts."""
        after = self._downstream(nodes)
        for node in nodes:
            if ops_on_tpu.ON_TPU_MARK in node.attr and node.op not in ops_on_tpu.SCAFFOLDING:
                self._marked(node)
            elif node.op in (_CALL, _BATCHES):
                if node.op == _BATCHES:
                    self._batch_sizes = tuple(node.attr["allowed_batch_sizes"].list.i)
                self._calls.append(node)
            elif node.op not in _NO_WORK:
                self._on_host(node, after=node.name in after, in_tpu_call=in_tpu_call)

    def _marked(self, node: Any) -> None:
        if is_outside(node):
            self._outside[node.op] += 1
            return
        for inner, _ in ops_on_tpu.nodes_on_tpu([node], self._functions, seen=self._seen["TPU"]):
            self._on_tpu[inner.op] += 1
            reason = ops_on_tpu.why_not_on_tpu(inner)
            if reason:
                self._refused.append(f"{inner.op} {inner.name!r}, which {reason}")
        self._outside.update(
            inner.op
            for inner in ops_on_tpu.nodes_kept_outside(
                node, self._functions, seen=self._seen["outside"]
            )
        )

    def _on_host(self, node: Any, *, after: bool, in_tpu_call: bool) -> None:
        if in_tpu_call:
            self._beside.append(f"{node.op} {node.name!r}")
        elif after:
            self._after.append(f"{node.op} {node.name!r}")
        else:
            self._before[node.op] += 1
            for inner in ops_on_tpu.nodes_called(node, self._functions, seen=self._seen["host"]):
                if inner.op not in _NO_WORK:
                    self._before[inner.op] += 1

    def _downstream(self, nodes: Iterable[Any]) -> set[str]:
        """Names of the nodes that get data from the TPU, directly or not."""
        consumers: dict[str, list[str]] = collections.defaultdict(list)
        for node in nodes:
            for source in node.input:
                if not source.startswith("^"):
                    consumers[_producer(source)].append(node.name)
        pending = [node.name for node in nodes if self._gives_from_tpu(node)]
        seen: set[str] = set()
        while pending:
            for name in consumers[pending.pop()]:
                if name not in seen:
                    seen.add(name)
                    pending.append(name)
        return seen

    def _gives_from_tpu(self, node: Any) -> bool:
        batches = node.op == _BATCHES and node.attr["f"].func.name in self._with_tpu
        return batches or _is_of_tpu(node)


def _is_of_tpu(node: Any) -> bool:
    return node.op == _CALL or ops_on_tpu.ON_TPU_MARK in node.attr


def _needed(meta_graph: tf.compat.v1.MetaGraphDef) -> list[Any]:
    """The nodes that the signatures' outputs are computed from; all, where there are none."""
    by_name = {node.name: node for node in meta_graph.graph_def.node}
    pending = [
        _producer(name)
        for signature in meta_graph.signature_def.values()
        for info in signature.outputs.values()
        for name in graph_nodes.tensor_names(info)
    ]
    if not pending:
        return list(by_name.values())
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in by_name and name not in seen:
            seen.add(name)
            pending.extend(_producer(source) for source in by_name[name].input)
    return [node for node in meta_graph.graph_def.node if node.name in seen]


def _producer(source: str) -> str:
    """The node that a tensor or a control edge comes from."""
    return source.removeprefix("^").split(":")[0]
