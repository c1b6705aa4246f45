"""Finds the nodes of a graph that a TPU runs, and those that no TPU can run.

It reads nodes instead of ops, so it works for a graph under construction and for a file; `nodes_of_step` returns
those of a traced template.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import graph_nodes, tf_private
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import EXCHANGES
from tfx_tpu_trainer.estimator._engine.graph_nodes import called_functions, functions_of, upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.outside_compilation import is_outside

ON_TPU_MARK = "_tpu_replicate"
"""Attribute of the nodes that `tf.compat.v1.tpu.rewrite` placed on the TPU."""

# Marks where a result leaves the computation. Tensors from the host pass through one too, and are
# removed from the program.
_OUTPUT_MARK = "_tpu_output_identity"

# The compiler drops assertions, and with them the strings that only they read.
_DROPPED = frozenset({"Assert", "Const", "NoOp"})

# Ops around the computation, which the TPU's runtime removes.
SCAFFOLDING = frozenset(
    {
        "TPUCompilationResult",
        "TPUOrdinalSelector",
        "TPUPartitionedCall",
        "TPUReplicateMetadata",
        "TPUReplicatedInput",
        "TPUReplicatedOutput",
    }
)

_TABLES = re.compile("HashTable|LookupTable|InitializeTable")
_DATASETS = re.compile("Dataset|Iterator")
_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})


class TpuNode(NamedTuple):
    """A node that the TPU runs."""

    # Its NodeDef.
    node: Any
    # The marked node that contains it: itself, or the loop, branch or call in whose function it is.
    caller: Any


def nodes_on_tpu(
    nodes: Iterable[Any], functions: Mapping[str, Any], *, seen: set[str] | None = None
) -> Iterator[TpuNode]:
    """Yields the nodes that the TPU runs, of some nodes and the functions that they call."""
    seen = set() if seen is None else seen
    for node in nodes:
        if ON_TPU_MARK in node.attr and node.op not in SCAFFOLDING and not is_outside(node):
            yield TpuNode(node, node)
            for inner in nodes_called(node, functions, seen=seen):
                yield TpuNode(inner, node)


def nodes_called(
    node: Any, functions: Mapping[str, Any], *, seen: set[str] | None = None
) -> Iterator[Any]:
    """Yields the nodes in the functions that a node calls, directly or not, each once, without those kept outside."""
    yield from filter(_is_inside, _all_called(node, functions, seen))


def nodes_kept_outside(
    node: Any, functions: Mapping[str, Any], *, seen: set[str] | None = None
) -> Iterator[Any]:
    """Yields the nodes in the functions that a node calls that are kept outside."""
    yield from filter(is_outside, _all_called(node, functions, seen))


def _all_called(node: Any, functions: Mapping[str, Any], seen: set[str] | None) -> Iterator[Any]:
    return graph_nodes.nodes_called([node], functions, seen=seen, enters=_is_inside)


def _is_inside(node: Any) -> bool:
    return not is_outside(node)


def is_for_tpus_alone(op: str) -> bool:
    """Returns whether only a TPU's host runs an op: an exchange between cores, or an op with TPU in its name."""
    return "TPU" in op or op in EXCHANGES


def why_not_on_tpu(node: Any) -> str | None:
    """Explains why no TPU can run a node."""
    if node.op in _DROPPED or node.op in SCAFFOLDING or _OUTPUT_MARK in node.attr:
        return None
    if node.op in _PYTHON:
        return "calls Python"
    if _TABLES.search(node.op):
        return "looks up a table"
    if _DATASETS.search(node.op):
        return "reads a dataset"
    # A loop, branch or call may pass on strings that nothing inside reads.
    if not any(graph_nodes.called_functions(node)) and tf.string in _dtypes(node):
        return "handles strings"
    return None


def _dtypes(node: Any) -> set[tf.DType]:
    definition = tf_private.op_definition(node.op)
    if definition is None:
        return set()
    found: set[int] = set()
    for argument in (*definition.input_arg, *definition.output_arg):
        found.add(argument.type)
        for name in (argument.type_attr, argument.type_list_attr):
            attr = node.attr.get(name, None)
            if attr is not None:
                found.update((attr.type, *attr.list.type))
    return {tf.dtypes.as_dtype(number) for number in found if number}


StepNodes = Sequence[tuple[tf.Operation, Any, Sequence[Any]]]
"""The ops of a step, each with its NodeDef and those in the functions that it calls."""


def nodes_of_step(template: ModelTemplate) -> StepNodes:
    """Returns the ops between a core's inputs and the results of a step, each once."""
    definition = template.graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    functions = functions_of(definition.library)

    inner: dict[tuple[str, ...], list[Any]] = {(): []}
    made = []
    for op in _ops_of_step(template):
        node = nodes[op.name]
        called = tuple(called_functions(node))
        if called not in inner:
            inner[called] = list(nodes_called(node, functions))
        made.append((op, node, inner[called]))
    return made


def _ops_of_step(template: ModelTemplate) -> Iterator[tf.Operation]:
    host_tensors = [
        function.tensors
        for function in (template.eval_metrics, template.host_call, template.table_update)
        if function is not None
    ]
    # Neither training nor evaluation reads predictions, which heads may make strings.
    predictions = template.predictions if template.mode == "infer" else None
    metric_ops = template.eval_metric_ops
    results = (template.train_op, template.loss, predictions, metric_ops, host_tensors)
    inputs = _ops(tf.nest.flatten((template.features, template.labels)))
    given = {tensor.name for op in inputs for tensor in op.outputs}
    return upstream(_ops(tf.nest.flatten(results)), given=given)


def _ops(leaves: Iterable[Any]) -> Iterator[tf.Operation]:
    for leaf in leaves:
        if isinstance(leaf, tf.Operation):
            yield leaf
        elif isinstance(leaf, (tf.Tensor, tf.Variable)):
            yield leaf.op
        elif isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
            yield from _ops(tf.nest.flatten(leaf, expand_composites=True))
