"""The ops of a step: what a core runs of a traced template."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.checking import tpu_support
from tfx_tpu_trainer.engine.template import ModelTemplate


def nodes_of_step(template: ModelTemplate) -> Iterator[tuple[tf.Operation, Iterator[Any]]]:
    """Yields the ops between a core's inputs and what a step gives, each once.

    Args:
        template: The template.

    Yields:
        An op and the NodeDefs that run with it: its own, and those in the functions that it calls,
        deep, without those kept outside of a TPU's computation.
    """
    definition = template.graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    functions = {function.signature.name: function for function in definition.library.function}
    for op in _ops_of_step(template):
        node = nodes[op.name]
        yield op, itertools.chain([node], tpu_support.nodes_called(node, functions))


def _ops_of_step(template: ModelTemplate) -> Iterator[tf.Operation]:
    host_tensors = [
        function.tensors
        for function in (template.eval_metrics, template.host_call, template.table_update)
        if function is not None
    ]
    metric_ops = template.eval_metric_ops
    results = (template.train_op, template.loss, template.predictions, metric_ops, host_tensors)
    seen = {op.name for op in _ops(tf.nest.flatten((template.features, template.labels)))}
    waiting = list(_ops(tf.nest.flatten(results)))
    while waiting:
        op = waiting.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        yield op
        waiting.extend(tensor.op for tensor in op.inputs)
        waiting.extend(op.control_inputs)


def _ops(leaves: Iterable[Any]) -> Iterator[tf.Operation]:
    for leaf in leaves:
        if isinstance(leaf, tf.Operation):
            yield leaf
        elif isinstance(leaf, (tf.Tensor, tf.Variable)):
            yield leaf.op
        elif isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor)):
            yield from _ops(tf.nest.flatten(leaf, expand_composites=True))
