"""Pruning: ends a trial that does not get better, or is worse than the median of the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tfx_tpu_trainer.components.evaluation._learning_curve import Goal

Curve = Mapping[int, float]
"""The objective of a trial by the step of its evaluation."""


def reason_to_stop(
    curve: Curve,
    others: Sequence[Curve],
    *,
    goal: Goal,
    least_others: int | None,
) -> str:
    """Says why a trial is not worth its next steps; `""` where it is.

    By the median rule of Google Vizier a trial ends whose best value is worse than the median of what the others had
    on average up to the same step.
    """
    # Example, where higher is better: at step 200 the others' averages are 0.7, 0.8 and 0.6, so their median is 0.7,
    # and a trial with {100: 0.5, 200: 0.69} ends. It is compared with averages, and not with the others' best values,
    # so that one that began slowly and is catching up stays. Only others that have come as far count: those that were
    # pruned earlier would lower the bar.
    best = _best(curve, goal)
    since = [step for step in curve if step > best]
    if goal.patience is not None and len(since) >= goal.patience:
        return f"{goal.metric} has not improved in {len(since)} evaluations"
    if least_others is None:
        return ""
    step = max(curve)
    averages = [
        statistics.fmean(value for at, value in other.items() if at <= step)
        for other in others
        if any(at <= step for at in other) and max(other) >= step
    ]
    if len(averages) < least_others:
        return ""
    median = statistics.median(averages)
    if not goal.is_better(median, than=curve[best]):
        return ""
    return (
        f"at step {step} its best {goal.metric}, {curve[best]:.4g}, is worse than the median of {len(averages)} "
        f"others, {median:.4g}"
    )


def _best(curve: Curve, goal: Goal) -> int:
    """Returns the first step with the best value."""
    best = min(curve)
    for step in sorted(curve):
        if goal.is_better(curve[step], than=curve[best]):
            best = step
    return best
