"""Marks the ops that model_fn passes to `tf.compat.v1.tpu.outside_compilation`, and makes them run.

The marks are TensorFlow's own. When a session or a strategy runs a copy of the model on a TPU, TensorFlow's passes cut
the marked ops out of the cores' program, put them on the host, and connect the two. Emulated cores are on the host
already: there the marks only exempt ops from the checks for TPUs.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import makes_handle
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

OUTSIDE_MARK = tf_private.OUTSIDE_MARK
"""Attribute of the nodes that `outside_compilation` keeps on the host; its value names the cluster."""

_CALL_OF_PYTHON = "EagerPyFunc"

# The name scopes of tf.gradients and of a tape.
_OF_A_GRADIENT = re.compile(r"(^|/)gradient(s(_\d+)?|_tape)/")

# Every `with writer.as_default()` ends with this op. The session flushes the writers once, at its end.
_LEFT_TO_THE_SESSION = "FlushSummaryWriter"


# How ops are marked for the host. The problem: `outside_compilation` marks ops within
# `tpu.replicate` only, and a model is traced once, before there are replicas; anywhere else it
# warns, or does nothing. The idea: while model_fn is traced, a context of TensorFlow's own gives
# each op the attribute that it would get there, and copies of the ops keep it, on a TPU or an
# emulated core:
#   outside_compilation(tf.print, x)  ->  nodes with _xla_outside_compilation="0"; next call: "1"
# TensorFlow's passes then cut out the clusters with this attribute. The invariants: two calls are two
# clusters, since a single one could wait for an op on the TPU between them, which waits for it; and
# calls of Python are marked also where TensorFlow made them, in a gradient.
@contextlib.contextmanager
def outside_marked() -> Iterator[None]:
    """Marks the ops of `outside_compilation` in the block, in the default graph and its functions."""
    with tf_private.marking_outside_compilation():
        yield
    _mark_gradients(v1.get_default_graph())


def with_effects(template: ModelTemplate) -> ModelTemplate:
    """Makes marked ops with effects, such as summaries and prints, run in every step, as TensorFlow's passes do."""
    kept = [op for op in template.graph.get_operations() if OUTSIDE_MARK in op.node_def.attr]
    # Ops that make handles are stateful, too, but have no effect.
    effects = [
        op
        for op in kept
        if op.op_def.is_stateful and op.type != _LEFT_TO_THE_SESSION and not makes_handle(op)
    ]
    if not effects:
        return template
    results = template.predictions if template.loss is None else template.loss
    waited_for = set(upstream(tf.nest.flatten(results)))
    with tf.control_dependencies([op for op in effects if op not in waited_for]):
        results = tf.nest.map_structure(tf.identity, results)
    field = "predictions" if template.loss is None else "loss"
    return dataclasses.replace(template, **{field: results})


def is_outside(node: Any) -> bool:
    """Returns whether `outside_compilation` keeps a node on the host.

    Args:
        node: A NodeDef.
    """
    return OUTSIDE_MARK in node.attr


def python_of_gradient(op: tf.Operation) -> tf.Operation | None:
    """Returns the call of a `tf.py_function` whose gradient an op computes; `None` for other ops."""
    if op.type != _CALL_OF_PYTHON or not _OF_A_GRADIENT.search(op.name):
        return None
    # It runs after the function's own call, with the gradients of its results.
    for forward in op.control_inputs:
        if forward.type == _CALL_OF_PYTHON and _types(forward) == _types(op)[::-1]:
            return forward
    return None


def _types(op: tf.Operation) -> tuple[Any, Any]:
    return op.get_attr("Tin"), op.get_attr("Tout")


def _mark_gradients(graph: tf.Graph) -> None:
    """Marks the gradients of marked Python functions, which call Python, too; TPUs can compute all others."""
    # TensorFlow marks gradients only where it must colocate them with their ops.
    for op in graph.get_operations():
        forward = python_of_gradient(op)
        if forward is not None and is_outside(forward.node_def) and not is_outside(op.node_def):
            cluster = forward.get_attr(OUTSIDE_MARK).decode()
            tf_private.mark_outside(op, f"{cluster}.{op.name.replace('/', '_')}")
