"""Profiles the steps that `RunConfig(profile_steps=...)` names, for TensorBoard's profile plugin."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()


class ProfileHook(v1.train.SessionRunHook):
    """Profiles this process while some steps run.

    `tf.estimator.ProfilerHook` writes a timeline of single session calls every so many steps, which
    Chrome opens; this writes what TensorBoard's profile plugin reads. A context manager: a training
    that fails ends the profile too, as the profiler is the process's.
    """

    def __init__(
        self, first: int, last: int, *, steps_per_call: int = 1, output_dir: str | None
    ) -> None:
        """Sets what is profiled."""
        self._first, self._last = first, last
        self._steps_per_call = steps_per_call
        self._output_dir = output_dir
        self._is_on = False
        self._is_over = False
        self._mark: Any = None

    def __enter__(self) -> ProfileHook:
        """Does nothing yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends a profile that is going on."""
        self._stop()

    def begin(self) -> None:
        """Finds the global step."""
        self._global_step = v1.train.get_global_step()

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        """Begins with the call that has the first step, and marks the call."""
        if self._is_over:
            return
        step = int(run_context.session.run(self._global_step))
        if step >= self._last:
            self._is_over = True
            self._stop()
        elif not self._is_on and step + self._steps_per_call >= self._first:
            self._start()
        if self._is_on:
            # Without marks the plugin knows no steps.
            self._mark = tf.profiler.experimental.Trace("train", step_num=step + 1, _r=1)
            self._mark.__enter__()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Ends after the call that has the last step."""
        del run_values
        if not self._is_on:
            return
        self._end_mark()
        if int(run_context.session.run(self._global_step)) >= self._last:
            self._is_over = True
            self._stop()

    def end(self, session: v1.Session) -> None:
        """Ends with the training."""
        del session
        self._stop()

    def _start(self) -> None:
        try:
            tf.profiler.experimental.start(self._output_dir)
        except tf.errors.OpError as error:
            # Such as a program's own profiler: a process has one.
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
