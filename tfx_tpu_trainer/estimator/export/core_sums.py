"""Takes sums over TPU cores out of a graph that a CPU shall run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.export.meta_graph import MetaGraph

v1 = tf.compat.v1

_SUM = "CrossReplicaSum"


def without_core_sums(meta_graph: MetaGraph) -> MetaGraph:
    """Gives a metagraph in which a sum over cores is what it is on one core: its addend.

    TensorFlow has no CPU kernel for `CrossReplicaSum`, so that a graph with one cannot even be
    loaded: one of training with a `CrossShardOptimizer`, or one with batch norm over cores.

    Args:
        meta_graph: A metagraph for CPU hosts.

    Returns:
        The metagraph itself where it has no such sum, else one of a graph of its own.
    """
    if not any(_sums_of(meta_graph.graph.as_graph_def())):
        return meta_graph
    with meta_graph.graph.as_default():
        definition = v1.train.export_meta_graph(saver_def=meta_graph.saver.as_saver_def())
    for node in list(_sums_of(definition.graph_def)):
        _pass_through(node)
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(definition)
    init_op = graph.get_operation_by_name(meta_graph.init_op.name)
    return dataclasses.replace(meta_graph, graph=graph, saver=saver, init_op=init_op)


def _sums_of(graph_def: v1.GraphDef) -> Iterator[Any]:
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        yield from (node for node in nodes if node.op == _SUM)


def _pass_through(node: Any) -> None:
    """Turns a sum into an Identity of its addend; its other input is the groups of cores."""
    node.op = "Identity"
    control_inputs = [name for name in node.input if name.startswith("^")]
    node.input[:] = [node.input[0], *control_inputs]
    for name in [name for name in node.attr if name != "T" and not name.startswith("_")]:
        del node.attr[name]
