"""Rewrites a program's dataset into faster ops that yield the same elements.

Batches of rows of arrays are cut out of the arrays whole. `from_tensor_slices(arrays).batch(size)` makes a tensor of
each row of each array, and copies all of them into a batch: for small rows that takes longer than a step of a small
model, and several times as long as copying a batch at once.

tf.data's tuning is switched off if it gains nothing, because its thread can delay the end of a session by a minute:
TensorFlow wakes the thread before it sets the flag that the thread checks, so the thread can miss the end of its
iterator and sleep on. With tuning off, `map(function)` without `num_parallel_calls` no longer runs on several threads
where the function keeps no state (tf.data's option `map_parallelization`, on by default), which makes training half as
fast on two CPUs if a map takes longer than a step. So those maps are made parallel here.
"""

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.graph_nodes import called_functions, functions_of, upstream

v1 = tf.compat.v1

Edit = Callable[[tf.Operation, list[tf.Tensor]], tf.Tensor]
"""Makes the dataset variant that replaces an op's, given the op and its rewritten inputs."""


def ops_of(dataset: tf.data.Dataset) -> list[tf.Operation]:
    """Returns the ops of a dataset, in the order in which they were made."""
    makers = set(upstream([tf.data.experimental.to_variant(dataset)]))
    return [op for op in v1.get_default_graph().get_operations() if op in makers]


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """Returns a dataset's options."""
    with warnings.catch_warnings():
        # It warns that a dataset read from a file may have other options.
        warnings.simplefilter("ignore", UserWarning)
        return dataset.options()


def edited(dataset: tf.data.Dataset, edits: Mapping[tf.Operation, Edit]) -> tf.data.Dataset:
    """Replaces some of a dataset's ops, and all ops that read their results."""
    if not edits:
        return dataset
    graph = v1.get_default_graph()
    # The program may use the dataset elsewhere, so its ops are kept: an edited op is a new one, and
    # so is each op after it. In the order in which ops were made, inputs come first.
    made: dict[str, tf.Tensor] = {}
    for op in ops_of(dataset):
        if op not in edits and not any(tensor.name in made for tensor in op.inputs):
            continue
        inputs = [made.get(tensor.name, tensor) for tensor in op.inputs]
        with tf.device(op.device), tf.control_dependencies(op.control_inputs):
            if op in edits:
                made[op.outputs[0].name] = edits[op](op, inputs)
                continue
            types = [tensor.dtype for tensor in op.outputs]
            copied = graph.create_op(op.type, inputs, types, attrs=dict(op.node_def.attr))
        made.update((old.name, new) for old, new in zip(op.outputs, copied.outputs))
    variant = made[tf.data.experimental.to_variant(dataset).name]
    other = tf.data.experimental.from_variant(variant, dataset.element_spec)
    # The ops have the options already; this is for readers of `options()`.
    return other.with_options(options_of(dataset))


_BATCHES = ("BatchDatasetV2", "ParallelBatchDataset")


def batches_to_cut_out(dataset: tf.data.Dataset) -> dict[tf.Operation, Edit]:
    """Finds a dataset's batches of the rows of arrays in order, repeated or not if no batch spans two rounds."""
    return {op: _cut_out for op in ops_of(dataset) if op.type in _BATCHES and _can_be_cut_out(op)}


def _can_be_cut_out(batch: tf.Operation) -> bool:
    *repeats, rows = _stages_before(batch)
    size, drops = _size_and_drops(batch)
    if rows.type != "TensorSliceDataset" or rows.get_attr("is_files") or drops is None:
        return False
    if not size or size < 1 or not all(map(_is_array, rows.inputs)):
        return False
    lengths = {tensor.shape.as_list()[0] for tensor in rows.inputs}
    # 10 rows, repeated, in batches of 4: the third would be rows 8, 9, 0, 1.
    return len(lengths) == 1 and not (repeats and lengths.pop() % size)


def _is_array(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor has a static shape and plain values."""
    return tensor.shape.is_fully_defined() and tensor.dtype not in (tf.variant, tf.resource)


def _cut_out(batch: tf.Operation, inputs: list[tf.Tensor]) -> tf.Tensor:
    *repeats, rows = _stages_before(batch)
    size, drops = _size_and_drops(batch)
    length = rows.inputs[0].shape.as_list()[0]
    whole = length // size
    spec = {name: batch.get_attr(name) for name in ("output_types", "output_shapes")}
    with tf.device("/device:CPU:0"):  # An accelerator would copy the arrays.
        # 10 rows in batches of 4 are two batches as an array [2, 4, ...], and a rest of two rows.
        stacked = [
            tf.reshape(tensor[: whole * size], [whole, size, *tensor.shape.as_list()[1:]])
            for tensor in rows.inputs
        ]
        rest = [tensor[whole * size :] for tensor in rows.inputs]
    made = tf.raw_ops.TensorSliceDataset(
        components=stacked, output_shapes=[tensor.shape[1:] for tensor in stacked]
    )
    if length % size and not drops:
        last = tf.raw_ops.TensorDataset(
            components=rest, output_shapes=[tensor.shape for tensor in rest]
        )
        made = tf.raw_ops.ConcatenateDataset(input_dataset=made, another_dataset=last, **spec)
    for repeat in reversed(repeats):
        made = tf.raw_ops.RepeatDataset(input_dataset=made, count=repeat.inputs[1], **spec)
    return made


def _stages_before(batch: tf.Operation) -> Iterator[tf.Operation]:
    """Yields the ops before a batch: those that repeat its rows, then the one that makes them."""
    stage = batch.inputs[0].op
    while stage.type == "RepeatDataset":
        yield stage
        stage = stage.inputs[0].op
    yield stage


def _size_and_drops(batch: tf.Operation) -> tuple[int | None, bool | None]:
    """Returns a batch's size and whether a short batch is dropped, each `None` if it is not static."""
    drops = batch.inputs[3 if batch.type == "ParallelBatchDataset" else 2]
    return tf.get_static_value(batch.inputs[1]), tf.get_static_value(drops)


def maps_to_run_in_parallel(
    dataset: tf.data.Dataset, options: tf.data.Options
) -> dict[tf.Operation, Edit]:
    """Finds the maps that TensorFlow would run on several threads if it tuned the dataset."""
    # As in TensorFlow, maps in the function of another stage (`interleave`, `flat_map`) are not
    # among them.
    wanted = options.experimental_optimization
    if wanted.map_parallelization is False or (
        wanted.map_parallelization is None and wanted.apply_default_optimizations is False
    ):
        return {}
    maps = [op for op in ops_of(dataset) if op.type == "MapDataset" and not _is_synchronous(op)]
    if not maps:
        return {}
    library = v1.get_default_graph().as_graph_def().library
    functions = functions_of(library)
    return {op: _in_parallel for op in maps if not _keeps_state(op.get_attr("f").name, functions)}


def _in_parallel(op: tf.Operation, inputs: list[tf.Tensor]) -> tf.Tensor:
    return tf.raw_ops.ParallelMapDatasetV2(
        input_dataset=inputs[0],
        other_arguments=inputs[1:],
        num_parallel_calls=tf.data.AUTOTUNE,
        f=op.get_attr("f"),
        output_types=op.get_attr("output_types"),
        output_shapes=op.get_attr("output_shapes"),
        use_inter_op_parallelism=op.get_attr("use_inter_op_parallelism"),
        preserve_cardinality=op.get_attr("preserve_cardinality"),
        metadata=op.get_attr("metadata"),
    )


def _is_synchronous(op: tf.Operation) -> bool:
    """Returns whether an op comes from `map(synchronous=True)`, new in TensorFlow 2.18."""
    return op.node_def.attr["force_synchronous"].b


def _keeps_state(name: str, functions: Mapping[str, Any]) -> bool:
    """Returns whether TensorFlow counts a function as one with state, assertions aside."""
    pending, seen = [name], {name}
    while pending:
        function = functions[pending.pop()]
        for node in function.node_def if function.signature.is_stateful else ():
            definition = tf_private.op_definition(node.op)
            if node.op == "Assert" or (definition is not None and not definition.is_stateful):
                continue
            if node.op not in ("If", "While"):
                return True
            called = set(called_functions(node)) - seen
            seen |= called
            pending += called
    return False


# Without tuning, AUTOTUNE means as many parallel calls as the pool has threads, up to this number,
# and a prefetch that grows when it is empty: tuning could find nothing better on a smaller machine.
MOST_UNTUNED = 16

# The number of batches with which tuning begins to read ahead.
_READ_AHEAD = 2

# Ops whose inputs may be AUTOTUNE, -1; in `repeat` and `take`, -1 means all.
_TUNED_OPS = ("MapAndBatch", "Parallel", "Prefetch")
_MARKERS = ("FinalizeDataset", "ModelDataset", "OptionsDataset")


def tuned_where_it_helps(
    dataset: tf.data.Dataset, *, threads: int | None = None
) -> tf.data.Dataset:
    """Switches tuning off if it gains nothing, unless the program has set it.

    Tuning also makes TensorFlow read ahead if the dataset does not, and run maps without `num_parallel_calls` in
    parallel; the result does both.

    Args:
        dataset: A dataset of the default graph.
        threads: Threads of tf.data's pool. Defaults to the dataset's own pool, or one for each CPU.

    Returns:
        The dataset, or one of the same elements.
    """
    if tf.executing_eagerly():
        return dataset
    options = options_of(dataset)
    if options.autotune.enabled is not None:
        return dataset
    threads = threads or options.threading.private_threadpool_size or os.cpu_count() or 1
    maps = maps_to_run_in_parallel(dataset, options)
    if threads > MOST_UNTUNED and (maps or has_autotune(v1.get_default_graph())):
        return dataset
    dataset = edited(dataset, maps)
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    if options.experimental_optimization.inject_prefetch is not False and not _reads_ahead(dataset):
        dataset = dataset.prefetch(_READ_AHEAD)
    return dataset.with_options(untuned)


def has_autotune(graph: tf.Graph) -> bool:
    """Returns whether a dataset of a graph leaves something to tuning."""
    graph_def = graph.as_graph_def()
    scopes = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return any(map(_leaves_something, scopes))


def _leaves_something(nodes: Collection[v1.NodeDef]) -> bool:
    by_name = {node.name: node for node in nodes}
    return any(
        _may_be_autotune(by_name.get(source.partition(":")[0]))
        for node in nodes
        if node.op.startswith(_TUNED_OPS) and "Dataset" in node.op
        for source in node.input[1:]
    )


def _may_be_autotune(node: v1.NodeDef | None) -> bool:
    if node is None or node.op != "Const":
        return False
    value = tf.make_ndarray(node.attr["value"].tensor)
    return value.dtype == np.int64 and value.ndim == 0 and value == tf.data.AUTOTUNE


def _reads_ahead(dataset: tf.data.Dataset) -> bool:
    op = tf.data.experimental.to_variant(dataset).op
    while op.type in _MARKERS:
        op = op.inputs[0].op
    return op.type.startswith("Prefetch")
