"""Draws batches on the thread that runs a loop.

`IteratorGetNext` hands itself to a thread of its own, since the iterator may keep it waiting, and
the loop goes on when that thread wakes it: for small batches that takes as long as the draw. Its
synchronous form, which TensorFlow uses in eager execution, is for threads that nothing else needs
while they wait: the thread of a session call (`inter_op_thread_pool=-1`), or that of a loop with
threads of its own, which no dataset of the program runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1

IN_CALLERS_THREAD = v1.RunOptions(inter_op_thread_pool=-1)
"""Runs all of a session call on the thread that asks for it."""


def copy_with_direct_draws(
    copier: GraphCopier, step: Sequence[tf.Tensor | tf.Operation], *, name: str
) -> list[Any]:
    """Copies a step whose batch is drawn by the thread that runs it.

    All of the step waits for the batch: at the end of the input nothing of it has run, neither
    a count of steps nor a metric that reads no feature.
    """
    drawn = _direct_draws(step)
    with tf.control_dependencies(list(drawn.values())):
        return copier.copy([Fetch(0, node) for node in step], replaced=[drawn], name=name)


def _direct_draws(step: Sequence[tf.Tensor | tf.Operation]) -> dict[str, tf.Tensor]:
    """Adds a step's draws, and returns what stands for each tensor that it draws, by its name."""
    ops = list(upstream(step))
    draws = [op for op in ops if op.type == "IteratorGetNext"]
    waited_for = {control for op in ops for control in op.control_inputs}
    if any(draw.control_inputs or draw in waited_for for draw in draws):
        return {}
    made: dict[str, tf.Tensor] = {}
    for draw in draws:
        values = tf.raw_ops.IteratorGetNextSync(
            iterator=tf_private.capture(v1.get_default_graph(), draw.inputs[0]),
            output_types=draw.get_attr("output_types"),
            output_shapes=draw.get_attr("output_shapes"),
            name="IteratorGetNext",  # Errors of the input are told by it.
        )
        made.update((old.name, new) for old, new in zip(draw.outputs, values))
    return made
