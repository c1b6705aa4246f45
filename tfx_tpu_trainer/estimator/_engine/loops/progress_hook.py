"""Tells a training's progress what the session has at hand."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import Progress
from tfx_tpu_trainer.estimator._engine.checkpointing.writes_aside import PatientListener

v1 = tf.compat.v1


class ProgressHook(v1.train.SessionRunHook):
    """Tells a `Progress` of steps and losses when it is due, and of each checkpoint.

    It asks each call for the loss only, which the training fetches anyway, and bounds no loop; the global step is
    read when somebody is to be shown it.

    Attributes:
        every_n_steps: `None`: it bounds no loop.
        listener: To be told of checkpoints; a hook can't be one, as their `end` differs.
    """

    every_n_steps: int | None = None

    def __init__(
        self,
        progress: Progress,
        loss: tf.Tensor,
        *,
        steps: int | None,
        max_steps: int | None,
        rows_per_step: int | None = None,
        report_every: int | None = None,
        is_resumed: bool = False,
    ) -> None:
        self._progress = progress
        self._loss = loss
        self._steps = steps
        self._max_steps = max_steps
        self._settings = {"rows_per_step": rows_per_step, "report_every": report_every}
        self._is_resumed = is_resumed
        self._last_step: int | None = None
        self._latest: Any = None
        self.listener: v1.train.CheckpointSaverListener = _Checkpoints(progress)

    def begin(self) -> None:
        """Finds the global step."""
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Tells where the training starts and ends."""
        del coord
        step = int(session.run(self._global_step))
        if self._last_step is None:
            self._last_step = self._max_steps if self._steps is None else step + self._steps
        self._progress.trains(
            last=self._last_step,
            checkpoint=step if self._is_resumed else None,
            **self._settings,
        )

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Asks for the loss."""
        del run_context
        return v1.train.SessionRunArgs(self._loss)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Tells, if it is due."""
        self._latest = run_values.results
        if self._progress.is_due():
            step = int(run_context.session.run(self._global_step))
            self._progress.trained(step, self._latest)

    def reached(self, step: int, loss: Any) -> None:
        """Tells, if it is due; what runs ahead of the session calls it at loop ends."""
        self._latest = loss
        if self._progress.is_due():
            self._progress.trained(step, loss)

    def end(self, session: v1.Session) -> None:
        """Tells the last step, unless none was made."""
        if self._latest is not None:
            step = int(session.run(self._global_step))
            self._progress.trained(step, self._latest, has_ended=True)


class _Checkpoints(PatientListener):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        del session
        self._progress.saved(int(global_step_value))
