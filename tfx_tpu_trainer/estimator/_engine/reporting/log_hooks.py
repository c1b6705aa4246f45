"""Logs loss, step and speed during a run, and writes a profile.

The log lines equal the original's and are as frequent, but lines of one kind are at least five seconds apart; a small
model makes thousands of steps in that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress_views import LinePace

v1 = tf.compat.v1


_logger = tf.get_logger()

# TensorFlow's message, which its StepCounterHook logs five times.
_NOT_INCREASED = (
    "It seems that global step (tf.train.get_global_step) has not been increased. Current value "
    "(could be stable): %s vs previous value: %s. You could increase the global step by passing "
    "tf.train.get_global_step() to Optimizer.apply_gradients or Optimizer.minimize."
)
_WARNINGS = 5


class LossLogHook(v1.train.SessionRunHook):
    """Logs the loss and the step as the original's LoggingTensorHook does."""

    # For steps run one by one, that is the global step before the one that gave the loss; for a
    # loop, the one at which it ends.

    def __init__(
        self,
        loss: tf.Tensor,
        *,
        every_n_steps: int | None = None,
        every_n_secs: int | None = None,
        every_n_calls: int | None = None,
        steps_per_call: int = 1,
        shows_step_reached: bool = False,
        pace: LinePace | None = None,
    ) -> None:
        self._loss = loss
        self.every_n_steps = every_n_steps
        self._counts_calls = every_n_calls is not None
        self._calls = 0
        self._steps_per_call = steps_per_call
        self._back = 0 if shows_step_reached else 1
        self._timer = v1.train.SecondOrStepTimer(
            every_steps=every_n_calls or every_n_steps, every_secs=every_n_secs
        )
        self._pace = pace or LinePace()

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs([self._loss, self._global_step])

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Logs if due."""
        loss, stale_step = run_values.results
        self._calls += 1
        # Fetched with the train_op, this may be the step before or after it: enough to decide
        # whether a line may be due. The step in the line is read again.
        reached = self._calls if self._counts_calls else int(stale_step) + self._steps_per_call
        if not (self._timer.should_trigger_for_step(reached) and self._pace.is_open):
            return
        step = int(run_context.session.run(self._global_step))
        if self._counts_calls:
            self._log(loss, step, at=self._calls)
        else:
            self.reached(step, loss)

    def reached(self, step: int, loss: Any) -> None:
        """Logs if due; called at the end of a loop that ran ahead."""
        if self._timer.should_trigger_for_step(step) and self._pace.is_open:
            self._log(loss, step, at=step)

    def _log(self, loss: Any, step: int, *, at: int) -> None:
        self._pace.logged()
        seconds, _ = self._timer.update_last_triggered_step(at)
        step = max(step - self._back, 0)
        if seconds is None:
            _logger.info("loss = %s, step = %s", loss, step)
        else:
            _logger.info("loss = %s, step = %s (%.3f sec)", loss, step, seconds)


class ThroughputHook(v1.train.SessionRunHook):
    """Logs and summarizes `global_step/sec` and, given a batch size, `examples/sec`."""

    # TensorFlow's StepCounterHook reports no examples and can't be limited to a pace; the method to override is
    # private.

    def __init__(
        self,
        *,
        every_n_steps: int | None = None,
        every_n_secs: int | None = None,
        steps_per_call: int = 1,
        batch_size: int | None = None,
        output_dir: str | None,
        pace: LinePace | None = None,
    ) -> None:
        self.every_n_steps = every_n_steps
        self._steps_per_call = steps_per_call
        self._timer = v1.train.SecondOrStepTimer(every_steps=every_n_steps, every_secs=every_n_secs)
        self._batch_size = batch_size
        self._output_dir = output_dir
        self._pace = pace or LinePace()
        self._writer: v1.summary.FileWriter | None = None
        self._stale_steps: deque[int] = deque(maxlen=2)
        self._warnings_left = _WARNINGS
        self._pauses: Callable[[], float] = float
        self._paused = 0.0

    def leave_out(self, pauses: Callable[[], float]) -> None:
        """Leaves pauses out of the rates, given the function that returns their seconds so far."""
        self._pauses = pauses

    def begin(self) -> None:
        """Opens the events, through the cache: two writers on a folder overwrite each other."""
        if self._output_dir is not None:
            self._writer = v1.summary.FileWriterCache.get(self._output_dir)
        self._global_step = v1.train.get_global_step()

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._global_step)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Reports if due."""
        stale_step = int(run_values.results)
        if self._timer.should_trigger_for_step(stale_step + self._steps_per_call):
            self.reached(int(run_context.session.run(self._global_step)))
        # A call reads the step before or after its own: two calls may read the same, three may not.
        if list(self._stale_steps) == [stale_step] * 2 and self._warnings_left:
            self._warnings_left -= 1
            _logger.warning(_NOT_INCREASED, stale_step, stale_step)
        self._stale_steps.append(stale_step)

    def reached(self, step: int, loss: Any = None) -> None:
        """Reports if due; called at the end of a loop that ran ahead."""
        if not self._timer.should_trigger_for_step(step):
            return
        seconds, steps = self._timer.update_last_triggered_step(step)
        if seconds:
            before, self._paused = self._paused, self._pauses()
            self._report(step, steps / (seconds - (self._paused - before)))

    def _report(self, step: int, steps_per_second: float) -> None:
        rates = {"global_step/sec": steps_per_second}
        if self._batch_size is not None:
            rates["examples/sec"] = steps_per_second * self._batch_size
        if self._pace.is_open:
            self._pace.logged()
            for name, rate in rates.items():
                _logger.info("%s: %g", name, rate)
        if self._writer is not None:
            values = [v1.Summary.Value(tag=name, simple_value=rate) for name, rate in rates.items()]
            self._writer.add_summary(v1.Summary(value=values), step)


class ProfileHook(v1.train.SessionRunHook):
    """Profiles this process while some steps run, for TensorBoard's profile plugin."""

    # A context manager, so a training that fails ends the profile: the process has one profiler.
    # `tf.estimator.ProfilerHook` does something else: it writes timelines of single calls for Chrome.

    def __init__(
        self, first: int, last: int, *, steps_per_call: int = 1, output_dir: str | None
    ) -> None:
        self._first, self._last = first, last
        self._steps_per_call = steps_per_call
        self._output_dir = output_dir
        self._is_on = False
        self._is_over = False
        self._mark: Any = None

    def __enter__(self) -> ProfileHook:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        """Starts with the call of the first step, and marks the call."""
        if self._is_over:
            return
        step = int(run_context.session.run(self._global_step))
        if step >= self._last:
            self._is_over = True
            self._stop()
        elif not self._is_on and step + self._steps_per_call >= self._first:
            self._start()
        if self._is_on:
            # Without marks the plugin shows no steps.
            self._mark = tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1)
            self._mark.__enter__()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Ends after the call of the last step."""
        if not self._is_on:
            return
        self._end_mark()
        if int(run_context.session.run(self._global_step)) >= self._last:
            self._is_over = True
            self._stop()

    def end(self, session: v1.Session) -> None:
        """Ends with the training."""
        self._stop()

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(self._output_dir)
        except tf.errors.OpError as error:
            # A process has one profiler, which the program may be using.
            _logger.warning("The steps of profile_steps are not profiled: %s", error.message)
            self._is_over = True
        else:
            self._is_on = True

    def _stop(self) -> None:
        if not self._is_on:
            return
        self._end_mark()
        self._is_on = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            _logger.warning("The profile could not be written: %s", error.message)
        else:
            _logger.info(
                "Profiled steps %d to %d; open %s with TensorBoard's profile plugin.",
                self._first,
                self._last,
                self._output_dir,
            )

    def _end_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
