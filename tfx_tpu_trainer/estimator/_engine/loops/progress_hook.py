"""Reports the steps and losses of a session to the progress display."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import Progress
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import PatientListener

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reporting:
    """Where a training reports its progress, and its length."""

    progress: Progress
    # Steps to make from where the session starts, or the global step to stop at.
    steps: int | None = None
    max_steps: int | None = None
    # Rows of a step over all replicas; `None` if unknown.
    rows_per_step: int | None = None
    # Least number of steps between log lines; `None` for no lines.
    every_steps: int | None = None


class ProgressHook(v1.train.SessionRunHook):
    """Reports steps and losses to a `Progress` when it is due, and each checkpoint."""

    # Loops do not have to end for this hook.
    every_n_steps: int | None = None

    def __init__(self, reporting: Reporting, loss: tf.Tensor, *, is_resumed: bool = False) -> None:
        self._reporting = reporting
        self._progress = reporting.progress
        self._loss = loss
        self._is_resumed = is_resumed
        self._last_step: int | None = None
        self._latest: Any = None
        # A hook can't be a listener itself, as their `end` differs.
        self.listener: v1.train.CheckpointSaverListener = _Checkpoints(reporting.progress)

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Reports where the training starts and ends."""
        step = int(session.run(self._global_step))
        if self._last_step is None:
            steps, max_steps = self._reporting.steps, self._reporting.max_steps
            self._last_step = max_steps if steps is None else step + steps
        self._progress.trains(
            last=self._last_step,
            checkpoint=step if self._is_resumed else None,
            rows_per_step=self._reporting.rows_per_step,
            report_every=self._reporting.every_steps,
        )

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Fetches the loss, which the training fetches anyway."""
        return v1.train.SessionRunArgs(self._loss)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Reads the global step and reports it with the loss, if that is due."""
        self._latest = run_values.results
        if self._progress.is_due():
            step = int(run_context.session.run(self._global_step))
            self._progress.trained(step, self._latest)

    def reached(self, step: int, loss: Any) -> None:
        """Reports step and loss, if that is due; called at the end of a loop that ran ahead."""
        self._latest = loss
        if self._progress.is_due():
            self._progress.trained(step, loss)

    def end(self, session: v1.Session) -> None:
        """Reports the last step, unless none was made."""
        if self._latest is not None:
            step = int(session.run(self._global_step))
            self._progress.trained(step, self._latest, has_ended=True)


class _Checkpoints(PatientListener):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        self._progress.saved(int(global_step_value))
