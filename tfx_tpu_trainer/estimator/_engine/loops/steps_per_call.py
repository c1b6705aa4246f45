"""Decides how many steps a session call makes: which ones hooks must see, and how long loops are."""

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

# They report loss and step only, which the end of a loop gives as well.
_REPORTERS = (LossLogHook, ThroughputHook, ProgressHook)

# Hooks that act at steps which their settings tell, or at the session's start and end only.
_KNOWN_HOOKS = (
    DatasetInitializerHook,
    *_REPORTERS,
    ProfileHook,
    StopAtNanHook,
    VariableChecksHook,
    v1.train.FinalOpsHook,
)


class LoopEndHook(v1.train.SessionRunHook):
    """A hook that need not come back every step: many may run in one session call.

    To be subclassed by hooks for which the ends of loops are enough, such as one that stops after
    some time. One with neither `before_run` nor `after_run` of its own counts as such by itself.
    """


@dataclasses.dataclass(frozen=True)
class StepsPerCall:
    """The steps that must be run one by one."""

    # Global step at which the session starts.
    start: int
    # Steps between checkpoints, of which the first is at the start; `None` where they go by time.
    save_steps: float | None
    # For each hook that reports, the steps between its reports, of which the first is at the first
    # step.
    report_steps: tuple[float, ...]
    # Global step at which training ends; `None` goes to the end of the input.
    last_step: int | None
    # The first and the last step of those that are made one by one. Defaults to `None`: none are.
    watched_steps: tuple[int, int] | None = None

    def next_report(self, step: int, period: float) -> int:
        """Returns the next step at which a hook reports that does so every `period` steps."""
        return _next_due(self.start + 1, period, step)

    def steps_ahead(self, step: int) -> int | None:
        """Tells how many steps no hook need see."""
        # With reports every 10 steps, from step 1 on: at step 1 nine steps may run ahead, 2 to 10,
        # and step 11 is made by itself.
        dues = [self.next_report(step, period) for period in self.report_steps]
        if self.save_steps is not None:
            dues.append(_next_due(self.start, self.save_steps, step))
        if self.last_step is not None:
            dues.append(self.last_step)
        if self.watched_steps is not None and step < self.watched_steps[1]:
            dues.append(max(step + 1, self.watched_steps[0]))
        return max(0, min(dues) - 1 - step) if dues else None


def allows_loops(hooks: Iterable[v1.train.SessionRunHook]) -> bool:
    """Tells whether no hook could notice that it is not called back every step."""
    return all(
        type(hook) in _KNOWN_HOOKS
        or not wants_each_step(hook)
        or (type(hook) is HostCallHook and not hook.runs_each_step)
        for hook in hooks
    )


def wants_each_step(hook: v1.train.SessionRunHook) -> bool:
    """Tells whether a hook has a method for before or after a step, and the ends of loops are not enough for it."""
    return not isinstance(hook, LoopEndHook) and any(
        getattr(type(hook), method, None) is not getattr(v1.train.SessionRunHook, method)
        or method in getattr(hook, "__dict__", ())
        for method in ("before_run", "after_run")
    )


def needs_no_call(hook: v1.train.SessionRunHook) -> bool:
    """Tells whether a hook can be told of a step instead of being called back in it."""
    return type(hook) in _REPORTERS


def whole_steps(steps: float | None) -> int | None:
    """Rounds a number of steps up to a whole one.

    TensorFlow's timers take any number: a hook that is due every 31.25 steps acts at 0, 32 and 64.
    """
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
    """Chooses a loop's length so that it lasts about as long as asked for.

    The first loop is one step; after that the mean time of a step over the last loops decides.
    """

    def __init__(self, target_seconds: float) -> None:
        """Sets the target."""
        if target_seconds <= 0:
            raise ValueError(
                f"Invalid target time {target_seconds}: it must be a positive number of seconds."
            )
        self._target = target_seconds
        self._step_seconds: deque[float] = deque(maxlen=_REMEMBERED_LOOPS)

    def __call__(self) -> int:
        """Returns the length of the next loop, in steps."""
        if not self._step_seconds:
            return 1
        mean = sum(self._step_seconds) / len(self._step_seconds)
        return max(1, int(self._target / mean))

    def report(self, *, seconds: float, steps: int) -> None:
        """Tells how long a loop took; what is not positive is ignored."""
        if seconds > 0 and steps > 0:
            self._step_seconds.append(seconds / steps)


class TunedLoopLength:
    """Grows loops from one step until they last about a second, and follows the speed after that.

    A session call costs about a millisecond, so a second makes it free, and hooks still
    come often enough. A loop is at most four times as long as the one before: the first steps are
    slow, and what they say of the next ones is little.
    """

    def __init__(self, target_seconds: float = 1.0) -> None:
        """Sets the target."""
        self._target = target_seconds
        self._length = 1

    def __call__(self) -> int:
        """Returns the length of the next loop, in steps."""
        return self._length

    def report(self, *, seconds: float, steps: int) -> None:
        """Tells how long a loop took; what is not positive is ignored."""
        if seconds > 0 and steps > 0:
            wanted = int(self._target * steps / seconds)
            self._length = max(1, min(wanted, _MOST_GROWTH * steps))


class LoopLength:
    """Loops of a fixed length."""

    def __init__(self, steps: int) -> None:
        """Sets the length in steps."""
        self._steps = steps

    def __call__(self) -> int:
        """Returns the length of the next loop, in steps."""
        return self._steps

    def report(self, *, seconds: float, steps: int) -> None:
        """Ignores it: the length is fixed."""


class LoopHook(v1.train.SessionRunHook):
    """Runs training in loops: the last one is cut to the steps that are left."""

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
        # What the variable holds, where that is known.
        self._set_to: int | None = None

    def begin(self) -> None:
        """Makes the op that sets the length, before the graph is finalized."""
        self._global_step = tf_private.read_global_step()
        self._new_length = v1.placeholder(tf.int32, shape=())
        self._set_length = self._iterations.assign(self._new_length, read_value=False)

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Finds the last step and sets the first loop's length."""
        del coord
        self._session = session
        self._set_to = FIRST_LENGTH
        step = int(session.run(self._global_step))
        if self._steps is not None:
            self._last_step = step + self._steps
            self._steps = None
        self._set(session, step)

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        """Starts the clock."""
        del run_context
        self._started = self._clock()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops at the last step, or sets the next loop's length."""
        del run_values
        seconds = self._clock() - self._started
        step = int(run_context.session.run(self._global_step))
        self._length.report(seconds=seconds, steps=step - self._step)
        if step >= self._last_step:
            run_context.request_stop()
        else:
            self._set(run_context.session, step)

    def end(self, session: v1.Session) -> None:
        """Logs that training ended early, if it did; the loop that the input cut short counts too."""
        step = int(session.run(self._global_step))
        if step < self._last_step:
            _logger.info(
                "Training ended at global step %d, before step %d: the input ran out of data, or "
                "a hook stopped it.",
                step,
                self._last_step,
            )

    def end_loop(self) -> None:
        """Ends the loop that is running after its current step; for another thread to call."""
        # The loop reads the variable again in each step (`read_count`), so that 1 ends it.
        if self._session is not None:
            # The loop may have ended by itself, and its session with it.
            with contextlib.suppress(RuntimeError, tf.errors.CancelledError):
                self._session.run(self._set_length, feed_dict={self._new_length: 1})
            # Last: the training's own thread may have set a length meanwhile.
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

    # Chooses the length of each loop.
    length: LoopLength | LoopLengthFromTime | TunedLoopLength
    # The most steps that a loop has.
    longest: int
    # Periods whose multiples no loop runs past.
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
