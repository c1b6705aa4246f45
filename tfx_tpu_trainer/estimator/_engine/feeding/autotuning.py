"""Whether tf.data tunes a dataset while it is read: only where that can gain something.

The thread that tunes can miss the word that its iterator ends, and then sleeps on for up to a
minute, for which whoever closes the session waits: TensorFlow calls the thread before it sets the
flag that the thread looks at.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.dataset_edits import edited, options_of
from tfx_tpu_trainer.estimator._engine.feeding.parallel_maps import maps_to_run_in_parallel

v1 = tf.compat.v1

# Without tuning, AUTOTUNE is as many calls at once as the pool has threads, up to this many, and a
# prefetch that grows while it is found empty: all that tuning could arrive at on a smaller host.
MOST_UNTUNED = 16

# As many batches as tuning begins with where it reads ahead by itself.
_READ_AHEAD = 2

# What may be AUTOTUNE, -1, in these; in `repeat` and `take` it means all.
_TUNED_OPS = ("MapAndBatch", "Parallel", "Prefetch")
_MARKERS = ("FinalizeDataset", "ModelDataset", "OptionsDataset")


def tuned_where_it_helps(
    dataset: tf.data.Dataset, *, threads: int | None = None
) -> tf.data.Dataset:
    """Switches tuning off where nothing is to be gained by it, and the program says nothing of it.

    Where tuning is on, TensorFlow also reads ahead if the dataset does not, and runs maps without
    `num_parallel_calls` in parallel; so it does after.

    Args:
        dataset: A dataset of the default graph.
        threads: Threads of tf.data's pool. Defaults to the dataset's own pool, or one a core.

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
    """Tells whether a dataset of a graph leaves something to tuning."""
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
