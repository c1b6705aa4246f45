"""Writes summaries at the steps that are due, when the steps between them are not seen."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

v1 = tf.compat.v1


class SummaryHook(v1.train.SessionRunHook):
    """Writes the graph's summaries at the first step and every so many global steps after it.

    TensorFlow's SummarySaverHook decides a step ahead, from the step it saw last; where training
    runs ahead between calls, that step is long past.
    """

    def __init__(
        self,
        *,
        every_n_steps: int,
        output_dir: str,
        scaffold: v1.train.Scaffold,
        step_reached: Callable[[], int],
        step_after: tf.Tensor,
    ) -> None:
        """Sets where and how often.

        Args:
            every_n_steps: Global steps between summaries.
            output_dir: Folder of the events.
            scaffold: Its summary_op is written.
            step_reached: Returns the global step that the session has reached.
            step_after: The global step after the step that a call makes.
        """
        self._timer = v1.train.SecondOrStepTimer(every_steps=every_n_steps)
        self._output_dir = output_dir
        self._scaffold = scaffold
        self._step_reached = step_reached
        self._step_after = step_after
        self._started = False

    def begin(self) -> None:
        """Opens the events, through the cache: two writers on a folder overwrite each other."""
        self._writer = v1.summary.FileWriterCache.get(self._output_dir)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        """Adds the summaries to a step that is due."""
        del run_context
        due = self._timer.should_trigger_for_step(self._step_reached() + 1)
        summary_op = self._scaffold.summary_op
        if not due or summary_op is None:
            return None
        return v1.train.SessionRunArgs([summary_op, self._step_after])

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Writes what was fetched."""
        del run_context
        if run_values.results is None:
            return
        summary, step = run_values.results
        step = int(step)
        self._timer.update_last_triggered_step(step)
        if not self._started:
            self._writer.add_session_log(v1.SessionLog(status=v1.SessionLog.START), step)
            self._started = True
        self._writer.add_summary(summary, step)

    def end(self, session: v1.Session) -> None:
        """Flushes the events."""
        del session
        self._writer.flush()
