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
from tfx_tpu_trainer.engine.step_loop import StepLoop

v1 = tf.compat.v1

# What is due by time, such as a checkpoint every ten minutes, must not wait for long.
_LONGEST_SECONDS = 1.0


class FastForwardHook(v1.train.SessionRunHook):
    """Knows where a session starts, and runs it ahead between the calls that hooks see."""

    def __init__(
        self,
        loop: StepLoop,
        *,
        periods: tuple[int, ...],
        last_step_of: Callable[[int], int | None],
        model_dir: str,
    ) -> None:
        """Takes the loop.

        Args:
            loop: The loop.
            periods: Steps between what the session's hooks do, one for each.
            last_step_of: Gives the last step of a session that starts at a step, or `None`.
            model_dir: Folder of the checkpoints, named when the loss becomes NaN.
        """
        self._loop = loop
        self._periods = periods
        self._last_step_of = last_step_of
        self._model_dir = model_dir
        self._length = LoopLengthFromTime(_LONGEST_SECONDS)

    def begin(self) -> None:
        """Makes the op that sets the loop's length, before the graph is finalized."""
        self._global_step = v1.train.get_global_step()
        self._new_length = v1.placeholder(tf.int32, shape=())
        self._set_length = self._loop.iterations.assign(self._new_length, read_value=False)

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the step that the session starts at."""
        del coord
        start = int(session.run(self._global_step))
        self._pace = Pace(start, self._periods, self._last_step_of(start))

    def run_ahead(self, step_context: v1.train.MonitoredSession.StepContext) -> None:
        """Runs the steps that no hook need see; to be given to `run_step_fn`.

        Args:
            step_context: Gives the session without its hooks.

        Raises:
            NanLossError: If the loss became NaN.
        """
        session = step_context.session
        step = int(session.run(self._global_step))
        ahead = self._pace.steps_ahead(step)
        ahead = self._length() if ahead is None else min(ahead, self._length())
        if ahead < 1:
            return
        session.run(self._set_length, feed_dict={self._new_length: ahead})
        started = time.monotonic()
        loss = session.run(self._loop.loss)
        self._length.report(seconds=time.monotonic() - started, steps=ahead)
        if np.isnan(loss):
            raise NanLossError(
                step=int(session.run(self._global_step)),
                checkpoint=checkpoints.latest_checkpoint(self._model_dir),
            )
