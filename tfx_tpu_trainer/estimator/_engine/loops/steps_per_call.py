"""Decides how many steps a session call runs: which ones hooks must see, and the length of loops."""

import contextlib
import dataclasses
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import DatasetInitializerHook
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import ProgressHook
from tfx_tpu_trainer.estimator._engine.loops.step_loop import FIRST_LENGTH
from tfx_tpu_trainer.estimator._engine.nan_checks import StopAtNanHook, VariableChecksHook
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import (
    LossLogHook,
    ProfileHook,
    ThroughputHook,
)
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook

v1 = tf.compat.v1
_logger = tf.get_logger()

# Hooks that report only loss and step, which are known at the end of a loop as well.
_REPORTERS = (LossLogHook, ThroughputHook, ProgressHook)

# Hooks that act only at steps known from their settings, or at the session's start and end.
_KNOWN_HOOKS = (
    DatasetInitializerHook,
    *_REPORTERS,
    ProfileHook,
    StopAtNanHook,
    VariableChecksHook,
    v1.train.FinalOpsHook,
)


class LoopEndHook(v1.train.SessionRunHook):
    """A hook that does not have to be called every step: many may run in one session call.

    Subclassed by hooks for which the ends of loops are enough, such as one that stops after some
    time. A hook without a `before_run` or `after_run` does not need this base class.
    """


@dataclasses.dataclass(frozen=True)
class StepsPerCall:
    """Finds the steps that must be run one by one."""

    # Global step at which the session starts.
    start: int
    # Steps between checkpoints, the first at the start; `None` if they go by time.
    save_steps: float | None
    # For each hook that reports, the steps between its reports, the first at the first step.
    report_steps: tuple[float, ...]
    # Global step at which training ends; `None` for the end of the input.
    last_step: int | None
    # The first and the last of the steps to run one by one, for a profile.
    watched_steps: tuple[int, int] | None = None
    # Its multiples must be seen, wherever the session starts; `None` for none.
    awaited_steps: int | None = None

    def next_report(self, step: int, period: float) -> int:
        """Returns the next step at which a hook with a period reports."""
        return _next_due(self.start + 1, period, step)

    def steps_ahead(self, step: int) -> int | None:
        """Returns how many steps may run before the next that a hook must see; `None` for no limit."""
        # With reports every 10 steps from step 1 on: at step 1 nine steps may run ahead, 2 to 10,
        # and step 11 is run by itself.
        dues = [self.next_report(step, period) for period in self.report_steps]
        if self.save_steps is not None:
            dues.append(_next_due(self.start, self.save_steps, step))
        if self.awaited_steps is not None:
            dues.append(_next_due(0, self.awaited_steps, step))
        if self.last_step is not None:
            dues.append(self.last_step)
        if self.watched_steps is not None and step < self.watched_steps[1]:
            dues.append(max(step + 1, self.watched_steps[0]))
        return max(0, min(dues) - 1 - step) if dues else None


def allows_loops(hooks: Iterable[v1.train.SessionRunHook]) -> bool:
    """Returns whether many steps may run in one session call, for all of the hooks."""
    return all(
        type(hook) in _KNOWN_HOOKS
        or not wants_each_step(hook)
        or (type(hook) is HostCallHook and not hook.runs_each_step)
        for hook in hooks
    )


def wants_each_step(hook: v1.train.SessionRunHook) -> bool:
    """Returns whether a hook must be called before or after every step."""
    return not isinstance(hook, LoopEndHook) and any(
        getattr(type(hook), method, None) is not getattr(v1.train.SessionRunHook, method)
        or method in getattr(hook, "__dict__", ())
        for method in ("before_run", "after_run")
    )


def needs_no_call(hook: v1.train.SessionRunHook) -> bool:
    """Returns whether a hook's `reached` can be called for a step, instead of the hook in it."""
    return type(hook) in _REPORTERS


def whole_steps(steps: float | None) -> int | None:
    """Rounds up a number of steps, as TensorFlow's timers do: a period of 31.25 is due at 0, 32 and 64."""
    return None if steps is None or steps == math.inf else math.ceil(steps)


def _next_due(anchor: int, period: float, step: int) -> int:
    """Returns the first of anchor, anchor + period, ... that comes after a step."""
    if step < anchor:
        return anchor
    every = whole_steps(period)
    return sys.maxsize if every is None else anchor + ((step - anchor) // every + 1) * every


_REMEMBERED_LOOPS = 20
_MOST_GROWTH = 4


class LoopLengthFromTime:
    """Chooses lengths for a target time: first one step, then by the mean step time of the last loops."""

    def __init__(self, target_seconds: float) -> None:
        if target_seconds <= 0:
            raise ValueError(
                f"Invalid target time {target_seconds}: it must be a positive number of seconds."
            )
        self._target = target_seconds
        self._step_seconds: deque[float] = deque(maxlen=_REMEMBERED_LOOPS)

    def __call__(self) -> int:
        if not self._step_seconds:
            return 1
        mean = sum(self._step_seconds) / len(self._step_seconds)
        return max(1, int(self._target / mean))

    def report(self, *, seconds: float, steps: int) -> None:
        """Records the time that a loop took; ignores numbers that are not positive."""
        if seconds > 0 and steps > 0:
            self._step_seconds.append(seconds / steps)


class TunedLoopLength:
    """Grows loops from one step until they last about a second, then follows the speed."""

    # A session call costs about a millisecond, little compared with a second, and hooks are still called often enough.
    # A loop is at most four times as long as the previous one, since the first steps are slow and predict little.

    def __init__(self, target_seconds: float = 1.0) -> None:
        self._target = target_seconds
        self._length = 1

    def __call__(self) -> int:
        return self._length

    def report(self, *, seconds: float, steps: int) -> None:
        if seconds > 0 and steps > 0:
            wanted = int(self._target * steps / seconds)
            self._length = max(1, min(wanted, _MOST_GROWTH * steps))


class LoopLength:
    """Loops of a fixed length."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __call__(self) -> int:
        """Returns the length of the next loop, in steps."""
        return self._steps

    def report(self, *, seconds: float, steps: int) -> None:
        """Does nothing, since the length is fixed."""


class LoopHook(v1.train.SessionRunHook):
    """Sets the length of each training loop, and cuts the last one to the steps that are left."""

    def __init__(
        self,
        iterations: tf.Variable,
        *,
        length: LoopLength | LoopLengthFromTime | TunedLoopLength,
        steps: int | None,
        max_steps: int | None,
        ends_at_multiples_of: Sequence[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._iterations = iterations
        self._length = length
        self._steps = steps
        self._last_step = max_steps or 0
        self._periods = tuple(ends_at_multiples_of)
        self._clock = clock
        self._session: v1.Session | None = None
        # The variable's value, if it is known.
        self._set_to: int | None = None

    def also_end_at(self, period: int | None, *, clock: Callable[[], float]) -> None:
        """Ends loops at multiples of a further period, if any, and measures them by another clock."""
        self._periods += () if period is None else (period,)
        self._clock = clock

    def begin(self) -> None:
        """Makes the op that sets the length, before the graph is finalized."""
        self._global_step = tf_private.read_global_step()
        self._new_length = v1.placeholder(tf.int32, shape=())
        self._set_length = self._iterations.assign(self._new_length, read_value=False)

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the last step and sets the first loop's length."""
        self._session = session
        self._set_to = FIRST_LENGTH
        step = int(session.run(self._global_step))
        if self._steps is not None:
            self._last_step = step + self._steps
            self._steps = None
        self._set(session, step)

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        self._started = self._clock()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops at the last step, or sets the next loop's length."""
        seconds = self._clock() - self._started
        step = int(run_context.session.run(self._global_step))
        self._length.report(seconds=seconds, steps=step - self._step)
        if step >= self._last_step:
            run_context.request_stop()
        else:
            self._set(run_context.session, step)

    def end(self, session: v1.Session) -> None:
        """Logs if training ended early, even within a loop that the input cut short."""
        step = int(session.run(self._global_step))
        if step < self._last_step:
            _logger.info(
                "Training ended at global step %d, before step %d: the input ran out of data, or "
                "a hook stopped it.",
                step,
                self._last_step,
            )

    def end_loop(self) -> None:
        """Ends the running loop after its current step; called from another thread."""
        # The loop reads the variable again in each step (`read_count`), so 1 ends it.
        if self._session is not None:
            # The loop may have ended, and its session with it.
            with contextlib.suppress(RuntimeError, tf.errors.CancelledError):
                self._session.run(self._set_length, feed_dict={self._new_length: 1})
            # Set last: the training's own thread may have set a length in between.
            self._set_to = None

    def _set(self, session: v1.Session, step: int) -> None:
        self._step = step
        # At step 250 a period of 100 ends at 300.
        ends = [self._last_step, *(step - step % period + period for period in self._periods)]
        length = max(1, min(self._length(), *(end - step for end in ends)))
        if length != self._set_to:
            session.run(self._set_length, feed_dict={self._new_length: length})
            self._set_to = length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loops:
    """Loops of training steps, one in each session call."""

    length: LoopLength | LoopLengthFromTime | TunedLoopLength
    # The most steps of a loop.
    longest: int
    # Loops end at multiples of these.
    periods: Sequence[int]
    # Steps of a loop from one `host_call` to the next.
    host_call_every_n_steps: int

    def hook(
        self, iterations: tf.Variable, *, steps: int | None, max_steps: int | None
    ) -> LoopHook:
        """Returns the hook that sets each loop's length and stops at the last step."""
        return LoopHook(
            iterations,
            length=self.length,
            steps=steps,
            max_steps=max_steps,
            ends_at_multiples_of=self.periods,
        )
