"""Which steps hooks must see, so that the steps between them can run in one session call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import tensorflow as tf

from tfx_tpu_trainer.engine.input_pipeline import DatasetInitializerHook
from tfx_tpu_trainer.engine.loss_log_hook import LossLogHook
from tfx_tpu_trainer.engine.nan_hook import StopAtNanHook
from tfx_tpu_trainer.engine.throughput_hook import ThroughputHook

v1 = tf.compat.v1

LOOP_ENDS_ARE_ENOUGH = "loop_ends_are_enough"
"""A hook with this attribute, true, says that it need not come back every step."""

# Hooks that act at steps which their settings tell, or at the session's start and end only.
_KNOWN_HOOKS = (
    DatasetInitializerHook,
    LossLogHook,
    StopAtNanHook,
    ThroughputHook,
    v1.train.FinalOpsHook,
    v1.train.StopAtStepHook,
)


@dataclasses.dataclass(frozen=True)
class Pace:
    """The steps that must be run one by one.

    Attributes:
        start: Global step at which the session starts.
        periods: Steps between the reports, summaries and checkpoints of a hook, one for each;
            the first comes at the first step, or before it.
        last_step: Global step at which training ends; `None` goes to the end of the input.
    """

    start: int
    periods: tuple[int, ...]
    last_step: int | None

    def steps_ahead(self, step: int) -> int | None:
        """Tells how many steps no hook need see.

        A hook that fetches something at a step has decided so after the step before: both are
        run one by one.

        Args:
            step: Global step reached.

        Returns:
            Number of steps; `None` where nothing is ever due again.
        """
        dues = [due for period in self.periods for due in self._next_dues(step, period)]
        if self.last_step is not None:
            dues.append(self.last_step)
        return max(0, min(dues) - 2 - step) if dues else None

    def _next_dues(self, step: int, period: int) -> Iterable[int]:
        """Gives the next steps at which a hook may act.

        Some hooks count from the start, some from the first step.
        """
        for anchor in (self.start, self.start + 1):
            passed = max(0, step - anchor)
            due = anchor + -(-passed // period) * period
            yield due if due > step else due + period


def allows_loops(hooks: Iterable[v1.train.SessionRunHook]) -> bool:
    """Tells whether no hook could tell that it was not called back every step."""
    return all(
        type(hook) in _KNOWN_HOOKS or getattr(hook, LOOP_ENDS_ARE_ENOUGH, False) for hook in hooks
    )
