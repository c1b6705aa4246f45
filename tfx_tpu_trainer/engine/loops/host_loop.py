"""Training steps on this host that no hook need see, many in one session call."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.engine.loops.step_loop import repeat_step
from tfx_tpu_trainer.engine.template import ModelTemplate

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class HostLoop:
    """A loop of the template's own steps.

    Attributes:
        count: Placeholder of the number of steps, an int32 scalar.
        loss: The loss of the last step; fetching it runs the loop.
        global_step: The global step after the loop.
    """

    count: tf.Tensor
    loss: tf.Tensor
    global_step: tf.Tensor

    def prepare(self, session: v1.Session) -> None:
        """Does nothing: the loop is ready once there is a session."""

    def run(self, session: v1.Session, steps: int) -> tuple[np.ndarray, int]:
        """Makes some steps.

        Args:
            session: The session.
            steps: How many; fewer are made if the loss of one is not finite.

        Returns:
            The loss of the last step, and the global step reached.
        """
        loss, step = session.run([self.loss, self.global_step], feed_dict={self.count: steps})
        return loss, int(step)


def build_host_loop(template: ModelTemplate) -> HostLoop:
    """Makes a loop of the template's own steps.

    The loop's body is a copy of what a step runs, the input's get_next included, on the same
    variables and the same iterator: the loop and the template's own train_op take turns.

    Args:
        template: A template of mode `"train"`, placed on the host.

    Returns:
        The loop. It ends after a step whose loss is not finite, so that a NaN is found at its
        step.
    """
    copier = GraphCopier(template.graph)

    def step(number: tf.Tensor) -> tf.Tensor:
        del number
        fetches = [Fetch(0, template.train_op), Fetch(0, template.loss)]
        train_op, loss = copier.copy(fetches, replaced=[{}], name="step")
        with tf.control_dependencies([train_op]):
            return tf.identity(loss)

    count = v1.placeholder(tf.int32, shape=(), name="steps_ahead")
    loss = repeat_step(step, count, loss_dtype=template.loss_dtype, stop_if_not_finite=True)
    with tf.control_dependencies([loss]):
        return HostLoop(count, loss, v1.train.get_global_step().read_value())
