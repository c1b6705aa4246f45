"""Makes a dataset of other ops than the program's, of the same elements."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1

Edit = Callable[[tf.Operation, list[tf.Tensor]], tf.Tensor]
"""Makes a dataset's variant in place of an op's, from the op and its inputs as they are by then."""


def ops_of(dataset: tf.data.Dataset) -> list[tf.Operation]:
    """Returns the ops that make a dataset, in the order of their making."""
    makers = set(upstream([tf.data.experimental.to_variant(dataset)]))
    return [op for op in v1.get_default_graph().get_operations() if op in makers]


def options_of(dataset: tf.data.Dataset) -> tf.data.Options:
    """Returns a dataset's options."""
    with warnings.catch_warnings():
        # That a dataset which came through a file may have other options.
        warnings.simplefilter("ignore", UserWarning)
        return dataset.options()


def edited(dataset: tf.data.Dataset, edits: Mapping[tf.Operation, Edit]) -> tf.data.Dataset:
    """Replaces some of a dataset's ops, and with them those that read what they make."""
    if not edits:
        return dataset
    graph = v1.get_default_graph()
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
    # The ops have the options; this is for those who ask for them.
    return other.with_options(options_of(dataset))
