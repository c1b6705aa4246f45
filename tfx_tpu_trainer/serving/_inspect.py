"""Reads a metagraph's contents, and where each op would run, from its proto, without loading it."""

import collections
import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator.extending import (
    all_nodes,
    graph_nodes,
    is_outside,
    ops_on_tpu,
)
from tfx_tpu_trainer.serving._saved_model_file import read_saved_model

# TensorFlow keeps initializers among the signatures, with names that begin like this.
_INTERNAL_SIGNATURE_PREFIX = "__saved_model"

_CALL = "TPUPartitionedCall"
_BATCHES = "BatchFunction"

# These pass on values, or mark places: no work for a TPU.
_NO_WORK = frozenset(
    {"Const", "Identity", "IdentityN", "NoOp", "Placeholder", "PlaceholderWithDefault"}
    | {"VarHandleOp", _BATCHES, *ops_on_tpu.SCAFFOLDING}
)


class TensorDescription(NamedTuple):
    """A signature's input or output.

    Attributes:
        dtype: TensorFlow's name of the type, for example "float32" or "string".
        shape: one entry for each axis, None for an open one; None if even the rank is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}<unknown rank>"
        return (
            f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"
        )


@dataclasses.dataclass(frozen=True)
class SignatureDescription:
    """A signature's tensors.

    Attributes:
        inputs: key -> dtype and shape.
        outputs: key -> dtype and shape.
        method_name: TensorFlow Serving's method, such as "tensorflow/serving/predict".
    """

    inputs: Mapping[str, TensorDescription]
    outputs: Mapping[str, TensorDescription]
    method_name: str = ""


@dataclasses.dataclass(frozen=True)
class MetaGraphDescription:
    """One metagraph of a SavedModel.

    Attributes:
        tags: the tags by which it is loaded, sorted.
        signatures: name -> signature.
        num_ops: number of nodes, including those in its functions.
        tpu_ops: its op types that only a TPU host runs, sorted.
    """

    tags: tuple[str, ...]
    signatures: Mapping[str, SignatureDescription]
    num_ops: int
    tpu_ops: tuple[str, ...] = ()

    @property
    def has_tpu_ops(self) -> bool:
        """Whether it needs a TPU host."""
        return bool(self.tpu_ops)


def describe_saved_model(path: str | bytes | os.PathLike[str]) -> tuple[MetaGraphDescription, ...]:
    """Describes each metagraph of a SavedModel without loading it.

    Examples:
        >>> from tfx_tpu_trainer.serving import describe_saved_model
        >>> import tensorflow as tf
        >>> class Double(tf.Module):
        ...     @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
        ...     def __call__(self, x):
        ...         return {"doubled": 2 * x}
        >>> tf.saved_model.save(Double(), "double")
        >>> (metagraph,) = describe_saved_model("double")
        >>> metagraph.tags, metagraph.has_tpu_ops
        (('serve',), False)
        >>> print(metagraph.signatures["serving_default"].inputs["x"])
        float32[?]

    Args:
        path: folder with `saved_model.pb` or `saved_model.pbtxt`.

    Returns:
        One description per metagraph, in the file's order.

    Raises:
        FileNotFoundError: If the folder does not exist or has no SavedModel.
        ValueError: If the file is not a SavedModel.
    """
    return tuple(
        describe_meta_graph(meta_graph) for meta_graph in read_saved_model(path).meta_graphs
    )


def describe_meta_graph(meta_graph: tf.compat.v1.MetaGraphDef) -> MetaGraphDescription:
    """Describes a metagraph proto of a SavedModel."""
    ops = [node.op for node in all_nodes(meta_graph.graph_def)]
    return MetaGraphDescription(
        tags=tuple(sorted(meta_graph.meta_info_def.tags)),
        signatures={
            name: SignatureDescription(
                inputs=_tensors(signature.inputs),
                outputs=_tensors(signature.outputs),
                method_name=signature.method_name,
            )
            for name, signature in sorted(meta_graph.signature_def.items())
            if not name.startswith(_INTERNAL_SIGNATURE_PREFIX)
        },
        num_ops=len(ops),
        tpu_ops=tuple(sorted(set(filter(ops_on_tpu.is_for_tpus_alone, ops)))),
    )


def _tensors(tensor_infos: Mapping[str, Any]) -> dict[str, TensorDescription]:
    return {
        key: TensorDescription(
            dtype=_dtype_name(info.dtype),
            shape=_shape(info.tensor_shape),
        )
        for key, info in sorted(tensor_infos.items())
    }


def _dtype_name(number: int) -> str:
    try:
        return tf.dtypes.as_dtype(number).name
    except TypeError:
        # A type of a newer TensorFlow.
        return f"type {number}"


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape.unknown_rank:
        return None
    return tuple(None if axis.size < 0 else axis.size for axis in shape.dim)


@dataclasses.dataclass(frozen=True)
class OpPlacement:
    """The ops that a metagraph's signatures compute with, by the place where they run.

    Ops of a function count once for each place from which it is called; variables, saving, restoring and passing on a
    value do not count.

    Attributes:
        on_tpu: Number of nodes of each op type that the TPU runs.
        outside_compilation: The same for those that the model keeps on the host by `outside_compilation`.
        before: The same for those on the host that feed or bypass the TPU computation: the receiver's parsing,
            Transform's graph.
        after: Nodes on the host that work on the TPU's results, as `op 'name'`.
        beside: Nodes on the host in the function that the TPU call runs, as `op 'name'`.
        refused: Nodes on the TPU that TPUs can't run, as `op 'name' which ...`.
        batch_sizes: The sizes to which the model's own batching pads batches.
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
    """Finds where the ops of a metagraph run.

    Args:
        meta_graph: A metagraph of a SavedModel's proto. If it has signatures, only the ops that they need count.

    Returns:
        The placement; without a TPU computation all ops are `before` it.
    """
    walk = _Walk(graph_nodes.functions_of(meta_graph.graph_def.library))
    walk.graph(needed_nodes(meta_graph))
    return walk.placement()


class _Walk:
    """Visits nodes and the functions that they call, each once, and records where each runs."""

    # The graph of a TPU host calls TPUPartitionedCall, directly or through a BatchFunction. The called function holds
    # nodes marked by tf.compat.v1.tpu.rewrite, which the TPU runs, and others, which the host runs. Some marked nodes
    # may be kept outside the compilation. In the graph, nodes that get data from the call are "after", and all others
    # "before". A function counts once for each place that it is called from. Example: ParseExample ->
    # TPUPartitionedCall{MatMul (marked), AsString (outside)} -> Round: MatMul is on the TPU, AsString outside the
    # compilation, ParseExample before and Round after.

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
        # The visited functions, by place.
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
        """Records a graph's nodes, and the functions that the host starts from it."""
        self._host_nodes(nodes)
        while self._calls:
            node = self._calls.pop()
            name = node.attr["f"].func.name
            if name in self._functions and name not in self._seen[node.op]:
                self._seen[node.op].add(name)
                self._host_nodes(self._functions[name].node_def, in_tpu_call=node.op == _CALL)

    def _host_nodes(self, nodes: Iterable[Any], *, in_tpu_call: bool = False) -> None:
        """Records the nodes of a graph or function that the host starts."""
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
        """Returns the names of nodes that get data from the TPU, directly or indirectly."""
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


def needed_nodes(meta_graph: tf.compat.v1.MetaGraphDef) -> list[Any]:
    """Returns the nodes upstream of the signatures' outputs; all nodes without signatures."""
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
    """Returns the node of a tensor or a control edge."""
    return source.removeprefix("^").split(":")[0]
