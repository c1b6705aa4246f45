"""Which maps of a dataset run in parallel without tuning: those that do while TensorFlow tunes.

While TensorFlow tunes a dataset, `map(function)` without `num_parallel_calls` runs on several
threads if the function keeps no state (tf.data's option `map_parallelization`, on by default). It
does not while tuning is off: a map that takes longer than a step would make training half as fast
on two cores, and worse on more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.graph_nodes import upstream

v1 = tf.compat.v1

_PARALLEL_CALLS = "parallel_calls"


def maps_to_run_in_parallel(
    dataset: tf.data.Dataset, options: tf.data.Options
) -> list[tf.Operation]:
    """Finds the maps that run in turn although several threads would make the same elements.

    Maps within the function of another stage (`interleave`, `flat_map`) are not among them, as
    TensorFlow leaves those alone too.

    Args:
        dataset: A dataset of the default graph.
        options: Its options.

    Returns:
        Their ops; none if the options keep TensorFlow from looking for them.
    """
    wanted = options.experimental_optimization
    if wanted.map_parallelization is False or (
        wanted.map_parallelization is None and wanted.apply_default_optimizations is False
    ):
        return []
    maps = [
        op
        for op in upstream([tf.data.experimental.to_variant(dataset)])
        if op.type == "MapDataset" and not _is_synchronous(op)
    ]
    if not maps:
        return []
    library = v1.get_default_graph().as_graph_def().library
    functions = {function.signature.name: function for function in library.function}
    return [op for op in maps if not _keeps_state(op.get_attr("f").name, functions)]


def with_parallel_maps(dataset: tf.data.Dataset, maps: list[tf.Operation]) -> tf.data.Dataset:
    """Runs maps of a dataset on as many threads as its pool has.

    Args:
        dataset: A dataset of the default graph.
        maps: Those of its ops, of `maps_to_run_in_parallel`.

    Returns:
        The dataset if there are none, or else one of the same elements in the same order.
    """
    if not maps:
        return dataset
    graph = v1.get_default_graph()
    variant = tf.data.experimental.to_variant(dataset)
    changed = set(maps)
    graph_def = v1.GraphDef(versions=graph.graph_def_versions)
    given: dict[str, Any] = {_PARALLEL_CALLS: tf.constant(tf.data.AUTOTUNE, tf.int64)}
    makers = set(upstream([variant]))
    # In the order of their making, so that what an op reads comes before it.
    for op in (op for op in graph.get_operations() if op in makers):
        if op not in changed and changed.isdisjoint(tensor.op for tensor in op.inputs):
            continue
        changed.add(op)
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        given.update((tensor.name, tensor) for tensor in op.inputs if tensor.op not in changed)
        given.update((f"^{before.name}", before) for before in op.control_inputs)
        if op in maps:
            _run_in_parallel(node, len(op.inputs))
    with tf_private.importing(graph):
        (made,) = tf.graph_util.import_graph_def(
            graph_def, input_map=given, return_elements=[variant.name], name="parallel_maps"
        )
    return tf.data.experimental.from_variant(made, dataset.element_spec)


def _run_in_parallel(node: v1.NodeDef, inputs: int) -> None:
    node.op = "ParallelMapDatasetV2"
    node.input.insert(inputs, _PARALLEL_CALLS)
    node.attr["deterministic"].s = b"default"
    # What only a map in turn has: it is off here, and the type is inferred anew.
    node.attr.pop("force_synchronous", None)
    node.ClearField("experimental_type")


def _is_synchronous(op: tf.Operation) -> bool:
    """Tells whether `map(synchronous=True)` made an op, which TensorFlow 2.18 has."""
    return op.node_def.attr["force_synchronous"].b


def _keeps_state(name: str, functions: Mapping[str, Any]) -> bool:
    """Tells whether TensorFlow holds a function to keep state: any op but assertions may."""
    if not functions[name].signature.is_stateful:
        return False
    return any(_node_keeps_state(node, functions) for node in functions[name].node_def)


def _node_keeps_state(node: v1.NodeDef, functions: Mapping[str, Any]) -> bool:
    definition = tf_private.op_definition(node.op)
    if node.op == "Assert" or (definition is not None and not definition.is_stateful):
        return False
    called = [value.func.name for value in node.attr.values() if value.HasField("func")]
    return node.op not in ("If", "While") or any(_keeps_state(name, functions) for name in called)
