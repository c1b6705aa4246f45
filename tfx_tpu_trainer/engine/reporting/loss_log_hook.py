"""Logs loss and step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()


class LossLogHook(v1.train.SessionRunHook):
    """Logs the loss every so many global steps.

    TensorFlow's LoggingTensorHook counts session calls, and a call may make many steps.
    """

    def __init__(
        self,
        loss: tf.Tensor,
        *,
        every_n_steps: int | None = None,
        every_n_secs: int | None = None,
        steps_per_call: int = 1,
    ) -> None:
        """Sets what is logged.

        Args:
            loss: Scalar tensor.
            every_n_steps: Global steps between two lines; excludes `every_n_secs`.
            every_n_secs: Seconds between two lines.
            steps_per_call: Steps of a session call, at most. Defaults to 1.
        """
        self._loss = loss
        self.every_n_steps = every_n_steps
        self._steps_per_call = steps_per_call
        self._timer = v1.train.SecondOrStepTimer(every_steps=every_n_steps, every_secs=every_n_secs)

    def begin(self) -> None:
        """Finds the global step."""
        self._global_step = v1.train.get_global_step()

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Adds loss and step to the call."""
        del run_context
        return v1.train.SessionRunArgs([self._loss, self._global_step])

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Logs when the timer says so."""
        loss, stale_step = run_values.results
        if not self._timer.should_trigger_for_step(int(stale_step) + self._steps_per_call):
            return
        self.reached(int(run_context.session.run(self._global_step)), loss)

    def reached(self, step: int, loss: Any) -> None:
        """Logs when the timer says so; what runs ahead of the session calls it at loop ends.

        Args:
            step: Global step reached.
            loss: The step's loss.
        """
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, _ = self._timer.update_last_triggered_step(step)
        if seconds is None:
            _logger.info("loss = %s, step = %s", loss, step)
        else:
            _logger.info("loss = %s, step = %s (%.3f sec)", loss, step, seconds)
