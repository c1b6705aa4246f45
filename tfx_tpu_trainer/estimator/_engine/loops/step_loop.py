"""Runs many steps in one session call: makes the loop in the graph, and draws the batches of its steps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.graph_optimizer import (
    decided_on_cpu,
    optimize_dependencies_only,
)
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

FIRST_LENGTH = 1
"""Steps of the first loop in a new session, unless a hook sets another number."""


@dataclasses.dataclass(frozen=True)
class StepLoop:
    """A loop of training steps."""

    # Local variable of the number of steps in the next session call, so a shorter last loop
    # needs no second graph. A smaller value ends a loop that is running.
    iterations: tf.Variable
    # The loss of the loop's last step; fetching it runs the loop.
    loss: tf.Tensor


def build_step_loop(step: Callable[[tf.Tensor], tf.Tensor], *, loss_dtype: tf.DType) -> StepLoop:
    """Adds a loop of steps to the default graph."""
    iterations = create_iterations()
    count = iterations.read_value()
    loss = repeat_step(step, count, loss_dtype=loss_dtype, read_count=iterations.read_value)
    return StepLoop(iterations, loss)


def repeat_step(
    step: Callable[[tf.Tensor], tf.Tensor],
    count: tf.Tensor,
    *,
    loss_dtype: tf.DType,
    stop_if_not_finite: bool = False,
    read_count: Callable[[], tf.Tensor] | None = None,
) -> tf.Tensor:
    """Repeats a step in a loop of the default graph, within a function."""
    # A function has control flow v2 even if the program has switched it off; a loop in a function was measured to be at
    # least as fast.

    def all_steps(count: tf.Tensor) -> tf.Tensor:
        return steps_in_function(
            step,
            count,
            loss_dtype=loss_dtype,
            stop_if_not_finite=stop_if_not_finite,
            read_count=read_count,
        )

    loss = tf.function(all_steps, autograph=False)(count)
    optimize_dependencies_only(loss.op)
    return loss


def steps_in_function(
    step: Callable[[tf.Tensor], tf.Tensor],
    count: tf.Tensor,
    *,
    loss_dtype: tf.DType,
    stop_if_not_finite: bool = False,
    read_count: Callable[[], tf.Tensor] | None = None,
) -> tf.Tensor:
    """Repeats a step in a loop of the function under construction; see `repeat_step`."""

    def goes_on(number: tf.Tensor, loss: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        not_done = number < count
        if not stop_if_not_finite:
            return not_done
        with decided_on_cpu():
            return tf.logical_and(not_done, tf.math.is_finite(loss))

    def one_step(
        number: tf.Tensor, loss: tf.Tensor, count: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        loss_of_step = step(number)
        # In a copy of a graph, tensors of a queue have lost their shapes; a loss is a scalar.
        loss_of_step.set_shape(())
        # The count is read while the step runs, which does not wait for it.
        return number + 1, loss_of_step, read_count() if read_count else count

    start = (tf.constant(0), tf.zeros((), loss_dtype), count)
    return tf.while_loop(goes_on, one_step, start, parallel_iterations=1)[1]


def create_iterations() -> tf.Variable:
    """Makes the variable from which a loop reads its length; it is never saved."""
    return v1.get_variable(
        "iterations_per_loop",
        shape=(),
        dtype=tf.int32,
        initializer=v1.constant_initializer(FIRST_LENGTH),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )


@dataclasses.dataclass(frozen=True)
class TemplateLoop:
    """A loop of the template's own steps."""

    # Placeholder of the number of steps, an int32 scalar; 1 if it is not fed.
    count: tf.Tensor
    # The loss of the last step; fetching it runs the loop.
    loss: tf.Tensor
    # The global step after the loop.
    global_step: tf.Tensor

    def prepare(self, session: v1.Session) -> None:
        """Does nothing: a new session can run the same loop."""

    def run(self, session: v1.Session, steps: int) -> tuple[np.ndarray, int]:
        """Runs some steps; returns the last loss and the global step."""
        loss, step = session.run([self.loss, self.global_step], feed_dict={self.count: steps})
        return loss, int(step)


def build_template_loop(template: ModelTemplate) -> TemplateLoop:
    """Makes a loop of the template's own steps."""
    # Its body copies the step, the input's get_next included, on the same variables and iterator:
    # so the loop and the template's own train_op can take turns.
    copier = GraphCopier(template.graph)

    def step(number: tf.Tensor) -> tf.Tensor:
        fetches = [Fetch(0, template.train_op), Fetch(0, template.loss)]
        train_op, loss = copier.copy(fetches, replaced=[{}], name="step")
        with tf.control_dependencies([train_op]):
            return tf.identity(loss)

    count = v1.placeholder_with_default(tf.constant(1), shape=(), name="steps_ahead")
    loss = repeat_step(step, count, loss_dtype=template.loss_dtype, stop_if_not_finite=True)
    with tf.control_dependencies([loss]):
        return TemplateLoop(count, loss, v1.train.get_global_step().read_value())


IN_CALLERS_THREAD = v1.RunOptions(inter_op_thread_pool=-1)
"""Runs all of a session call on the calling thread."""


# `IteratorGetNext` runs on its own thread, since the iterator may keep it waiting, and the
# loop continues when that thread wakes it: for small batches that takes as long as the draw. Its
# synchronous form, which TensorFlow uses in eager execution, is for threads that nothing else needs
# while they wait: the thread of a session call (`inter_op_thread_pool=-1`), or that of a loop with
# its own threads, on which no dataset of the program runs.
def copy_with_direct_draws(
    copier: GraphCopier, step: Sequence[tf.Tensor | tf.Operation], *, name: str
) -> list[Any]:
    """Copies a step so that the thread that runs it draws its batch."""
    drawn = _direct_draws(step)
    # The whole step waits for the batch, so nothing of it runs at the end of the input, neither a count of steps
    # nor a metric that reads no feature.
    with tf.control_dependencies(list(drawn.values())):
        return copier.copy([Fetch(0, node) for node in step], replaced=[drawn], name=name)


def _direct_draws(step: Sequence[tf.Tensor | tf.Operation]) -> dict[str, tf.Tensor]:
    """Draws a step's batch; returns name of each tensor that the step draws -> its replacement."""
    ops = list(upstream(step))
    draws = [op for op in ops if op.type == "IteratorGetNext"]
    waited_for = {control for op in ops for control in op.control_inputs}
    # A control edge from or to a draw would be lost with it, so a step with one keeps its draws.
    if any(draw.control_inputs or draw in waited_for for draw in draws):
        return {}
    made: dict[str, tf.Tensor] = {}
    for draw in draws:
        values = tf.raw_ops.IteratorGetNextSync(
            iterator=tf_private.capture(v1.get_default_graph(), draw.inputs[0]),
            output_types=draw.get_attr("output_types"),
            output_shapes=draw.get_attr("output_shapes"),
            name="IteratorGetNext",  # Errors of the input are recognized by this name.
        )
        made.update((old.name, new) for old, new in zip(draw.outputs, values))
    return made
