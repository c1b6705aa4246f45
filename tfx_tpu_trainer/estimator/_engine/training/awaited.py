"""Lets a listener have checkpoints of its own during a training, which waits while the listener uses them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import PatientListener
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopHook
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import ThroughputHook
from tfx_tpu_trainer.estimator._engine.sessions.preemption import interruptible, signal_received

v1 = tf.compat.v1


class AwaitedListener(PatientListener):
    """A listener that awaits checkpoints, such as one that evaluates them; see `is_due` and `use`.

    Attributes:
        every_steps: Loops of steps end at multiples of it. `None` if checkpoints are due by time.
        seconds: How long the training has waited for the listener.
    """

    every_steps: int | None = None
    seconds: float = 0.0
    _awaited: int | None = None  # The step of the checkpoint being saved, if it is due.

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint of this step is awaited; once it is, so is that of each later step.

        Args:
            step: The global step.

        Returns:
            Whether to save now. The checkpoint is written while the training waits.
        """
        raise NotImplementedError

    def use(self, step: int) -> bool:
        """Uses an awaited checkpoint, after which `is_due` is false until the next one.

        A signal ends it at once, as there is nothing to save.

        Args:
            step: The checkpoint's global step.

        Returns:
            Whether the training is to stop.
        """
        raise NotImplementedError

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        """Notes whether the checkpoint is awaited."""
        del session
        step = int(global_step_value)
        self._awaited = step if self.is_due(step) else None

    def awaits(self, step: int) -> bool:
        """Keeps an awaited checkpoint from being written by a thread."""
        return step == self._awaited

    def after_save(self, session: v1.Session, global_step_value: int) -> bool:
        """Uses the checkpoint if it is awaited, unless a signal has already asked the training to stop."""
        del session
        step = int(global_step_value)
        if signal_received() is not None or not self.awaits(step):
            return False
        started = time.monotonic()
        try:
            with interruptible():
                return self.use(step)
        finally:
            self.seconds += time.monotonic() - started

    def clock(self) -> float:
        """Returns a monotonic time that stands still while the training waits for the listener."""
        return time.monotonic() - self.seconds


def wait_for(
    listener: AwaitedListener,
    *,
    saver_hooks: Sequence[v1.train.CheckpointSaverHook],
    hooks: Sequence[v1.train.SessionRunHook],
) -> None:
    """Makes a training save where a listener awaits it, and keeps what that takes out of its steps' times."""
    for saver in saver_hooks[:1]:  # The one that calls listeners.
        tf_private.set_timer(saver, _AwaitedTimer(tf_private.timer_of(saver), listener))
    for hook in hooks:
        if isinstance(hook, LoopHook):
            hook.also_end_at(listener.every_steps, clock=listener.clock)
        elif isinstance(hook, ThroughputHook):
            hook.leave_out(lambda: listener.seconds)


class _AwaitedTimer:
    """A saver hook's timer that is also due where a listener awaits a checkpoint."""

    def __init__(self, timer: Any, listener: AwaitedListener) -> None:
        self._timer = timer
        self._listener = listener
        self.reset()

    def reset(self) -> None:
        self._timer.reset()
        self._last: int | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        return self._listener.is_due(step) or self._timer.should_trigger_for_step(step)

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a checkpoint; one that only the listener awaits does not move the others."""
        self._last = step
        if self._listener.is_due(step) and not self._timer.should_trigger_for_step(step):
            return None, None
        elapsed: tuple[float | None, int | None] = self._timer.update_last_triggered_step(step)
        return elapsed

    def last_triggered_step(self) -> int | None:
        return self._last
