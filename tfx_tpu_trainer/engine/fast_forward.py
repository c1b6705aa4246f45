"""Runs training ahead to the next step that a hook must see."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.engine import checkpoints
from tfx_tpu_trainer.engine.loop_hook import LoopLengthFromTime
from tfx_tpu_trainer.engine.nan_hook import NanLossError
from tfx_tpu_trainer.engine.pace import Pace
from tfx_tpu_trainer.engine.placement.host_loop import HostLoop

v1 = tf.compat.v1

# What is due by time, such as a checkpoint every ten minutes, must not wait for long.
_LONGEST_SECONDS = 1.0


class FastForwardHook(v1.train.SessionRunHook):
    """Knows where a session stands, and runs it ahead between the calls that hooks see."""

    def __init__(
        self,
        loop: HostLoop,
        *,
        save_steps: int | None,
        report_steps: tuple[int, ...],
        last_step_of: Callable[[int], int | None],
        model_dir: str,
    ) -> None:
        """Takes the loop.

        Args:
            loop: The loop.
            save_steps: Steps between checkpoints, or `None`.
            report_steps: Steps between the reports of each hook that reports.
            last_step_of: Gives the last step of a session that starts at a step, or `None`.
            model_dir: Folder of the checkpoints, named when the loss becomes NaN.
        """
        self._loop = loop
        self._save_steps = save_steps
        self._report_steps = report_steps
        self._last_step_of = last_step_of
        self._model_dir = model_dir
        self._length = LoopLengthFromTime(_LONGEST_SECONDS)

    @property
    def step(self) -> int:
        """Global step reached."""
        return self._step

    def begin(self) -> None:
        """Finds the global step."""
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the step that the session starts at."""
        del coord
        self._step = int(session.run(self._global_step))
        self._pace = Pace(
            self._step, self._save_steps, self._report_steps, self._last_step_of(self._step)
        )

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Finds the step that a call has reached."""
        del run_values
        self._step = int(run_context.session.run(self._global_step))

    def run_ahead(self, step_context: v1.train.MonitoredSession.StepContext) -> None:
        """Runs the steps that no hook need see; to be given to `run_step_fn`.

        Args:
            step_context: Gives the session without its hooks.

        Raises:
            NanLossError: If the loss became NaN.
        """
        ahead = self._pace.steps_ahead(self._step)
        ahead = self._length() if ahead is None else min(ahead, self._length())
        if ahead < 1:
            return
        started = time.monotonic()
        loss, self._step = step_context.session.run(
            [self._loop.loss, self._loop.global_step], feed_dict={self._loop.count: ahead}
        )
        self._length.report(seconds=time.monotonic() - started, steps=ahead)
        if np.isnan(loss):
            raise NanLossError(
                step=int(self._step), checkpoint=checkpoints.latest_checkpoint(self._model_dir)
            )
