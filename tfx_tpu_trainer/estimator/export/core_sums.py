"""Takes sums over TPU cores, and their numbers, out of a graph that a CPU shall run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.cross_replica_ops import CORE_NUMBER, SUM, core_number
from tfx_tpu_trainer.estimator.export.meta_graph import MetaGraph

v1 = tf.compat.v1


def without_core_sums(meta_graph: MetaGraph) -> MetaGraph:
    """Returns a metagraph in which a sum over cores is what it is on one core: its addend.

    TensorFlow has no CPU kernel for `CrossReplicaSum`, so that a graph with one cannot even be
    loaded: one of training with a `CrossShardOptimizer`, or one with batch norm over cores. A
    core's number is 0: TensorFlow's kernel of `XlaReplicaId` would end the process that runs it.

    Args:
        meta_graph: A metagraph for CPU hosts.

    Returns:
        The metagraph itself where it has no such sum, else one of a graph of its own.
    """
    if not any(_sums_of(meta_graph.graph.as_graph_def())):
        return meta_graph
    with meta_graph.graph.as_default():
        definition = v1.train.export_meta_graph(saver_def=meta_graph.saver.as_saver_def())
    for node in _sums_of(definition.graph_def):
        if node.op == SUM:
            _pass_through(node)
    _number_cores(definition.graph_def)
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(definition)
    init_op = graph.get_operation_by_name(meta_graph.init_op.name)
    return dataclasses.replace(meta_graph, graph=graph, saver=saver, init_op=init_op)


def _sums_of(graph_def: v1.GraphDef) -> Iterator[Any]:
    for nodes in (graph_def.node, *(f.node_def for f in graph_def.library.function)):
        yield from (node for node in nodes if node.op in (SUM, CORE_NUMBER))


def _pass_through(node: Any) -> None:
    """Turns a sum into an Identity of its addend; its other input is the groups of cores."""
    node.op = "Identity"
    control_inputs = [name for name in node.input if name.startswith("^")]
    node.input[:] = [node.input[0], *control_inputs]
    for name in [name for name in node.attr if name != "T" and not name.startswith("_")]:
        del node.attr[name]


def _number_cores(graph_def: v1.GraphDef) -> None:
    """Turns cores' numbers into 0."""
    for node in graph_def.node:
        if node.op == CORE_NUMBER:
            node.CopyFrom(core_number(node.name, 0))
    for function in graph_def.library.function:
        numbers = [node for node in function.node_def if node.op == CORE_NUMBER]
        # In a function an output is referred to by its name, which is another one now.
        renamed = {f"{node.name}:id:0": f"{node.name}:output:0" for node in numbers}
        for node in numbers:
            node.CopyFrom(core_number(node.name, 0))
        for node in function.node_def if numbers else ():
            node.input[:] = [renamed.get(given, given) for given in node.input]
        for name in list(function.ret) if numbers else ():
            function.ret[name] = renamed.get(function.ret[name], function.ret[name])
