"""Which steps hooks must see, so that the steps between them can run in one session call."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checking.nan_checks import StopAtNanHook, VariableChecksHook
from tfx_tpu_trainer.estimator._engine.feeding.input_pipeline import DatasetInitializerHook
from tfx_tpu_trainer.estimator._engine.loops.progress_hook import ProgressHook
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook, ThroughputHook
from tfx_tpu_trainer.estimator._engine.reporting.profile_hook import ProfileHook
from tfx_tpu_trainer.estimator._engine.reporting.summary_hooks import HostCallHook

v1 = tf.compat.v1

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
class Pace:
    """The steps that must be run one by one.

    Attributes:
        start: Global step at which the session starts.
        save_steps: Steps between checkpoints, of which the first is at the start; `None` where
            they go by time.
        report_steps: For each hook that reports, the steps between its reports, of which the
            first is at the first step.
        last_step: Global step at which training ends; `None` goes to the end of the input.
        watched_steps: The first and the last step of those that are made one by one. Defaults to `None`: none
            are.
    """

    start: int
    save_steps: float | None
    report_steps: tuple[float, ...]
    last_step: int | None
    watched_steps: tuple[int, int] | None = None

    def next_report(self, step: int, period: float) -> int:
        """Returns the next step at which a hook reports that does so every `period` steps."""
        return _next_due(self.start + 1, period, step)

    def steps_ahead(self, step: int) -> int | None:
        """Tells how many steps no hook need see."""
        dues = [self.next_report(step, period) for period in self.report_steps]
        if self.save_steps is not None:
            dues.append(_next_due(self.start, self.save_steps, step))
        if self.last_step is not None:
            dues.append(self.last_step)
        if self.watched_steps is not None and step < self.watched_steps[1]:
            dues.append(max(step + 1, self.watched_steps[0]))
        return max(0, min(dues) - 1 - step) if dues else None


def allows_loops(hooks: Iterable[v1.train.SessionRunHook]) -> bool:
    """Tells whether no hook could tell that it was not called back every step."""
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
    """Returns the first whole number of steps that is not below any number of them.

    TensorFlow's timers take any number: a hook that is due every 31.25 steps acts at 0, 32 and 64.
    """
    return None if steps is None or steps == math.inf else math.ceil(steps)


def _next_due(anchor: int, period: float, step: int) -> int:
    """Returns the first of anchor, anchor + period, ... that comes after a step."""
    if step < anchor:
        return anchor
    every = whole_steps(period)
    return sys.maxsize if every is None else anchor + ((step - anchor) // every + 1) * every
