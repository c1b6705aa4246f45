"""Runs side by side: what was set otherwise, and whether a difference is more than chance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tfx_tpu_trainer.components.report._intervals import margin_of
from tfx_tpu_trainer.components.report._run_data import Measured, RunData

# Metrics of which less is better, by their names; of others more is.
_LESS_IS_BETTER = ("loss", "error", "entropy", "mse", "mae", "rmse", "deviance")


def less_is_better(metric: str) -> bool:
    """Tells by a metric's name whether a smaller value is the better one."""
    return any(part in metric.lower() for part in _LESS_IS_BETTER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A metric of a run less that of the first one.

    Attributes:
        metric: The metric.
        run: The run's place among those compared.
        value: The difference.
        margin: Half of its 95 % interval; `None` where a run has none.
        paired: Whether the interval is that of the same rows: chance that both share is not in it.
    """

    metric: str
    run: int
    value: float
    margin: float | None
    paired: bool

    @property
    def says(self) -> Literal["better", "worse", "within noise", "not known"]:
        """Whether the run is better than the first one, and whether that may be chance."""
        if self.margin is None or not math.isfinite(self.value):
            return "not known"
        if abs(self.value) <= self.margin:
            return "within noise"
        return "better" if (self.value < 0) == less_is_better(self.metric) else "worse"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceDifference:
    """A metric of a slice in the last run less that in the first one.

    Attributes:
        name: The slice.
        metric: The metric.
        before: Its value in the first run.
        after: Its value in the last run.
        num_examples: The slice's rows in the last run, or `None`.
    """

    name: str
    metric: str
    before: float
    after: float
    num_examples: int | None

    @property
    def worse_by(self) -> float:
        """How much worse the last run is; negative where it is better."""
        change = self.after - self.before
        return change if less_is_better(self.metric) else -change


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What runs have that others have not.

    Attributes:
        runs: The runs.
        settings: Setting, version or input that is not the same everywhere -> its value in each run,
            `""` where a run has none.
        differences: Metrics against the first run's, metric by metric.
        worse_slices: Slices of which the last run is worse than the first one, the worst first.
    """

    runs: tuple[RunData, ...]
    settings: dict[str, tuple[str, ...]]
    differences: tuple[Difference, ...]
    worse_slices: tuple[SliceDifference, ...]


def compare(runs: Sequence[RunData]) -> Comparison:
    """Compares runs with the first one.

    Args:
        runs: The runs, two at least.

    Returns:
        What is not the same.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(runs) < 2:
        raise ValueError(f"A comparison needs at least two runs; got {len(runs)}.")
    runs = _told_apart(runs)
    first = runs[0].measured
    differences = []
    if first is not None:
        for metric in sorted(first.metrics):
            for place, run in enumerate(runs):
                if place and run.measured is not None and metric in run.measured.metrics:
                    differences.append(_difference(metric, place, first, run.measured))
    return Comparison(
        runs=tuple(runs),
        settings=_settings(runs),
        differences=tuple(differences),
        worse_slices=_worse_slices(first, runs[-1].measured),
    )


def _told_apart(runs: Sequence[RunData]) -> list[RunData]:
    """Numbers runs of the same title."""
    titles = [run.title for run in runs]
    return [
        run
        if titles.count(run.title) == 1
        else dataclasses.replace(run, title=f"{run.title} ({place})")
        for place, run in enumerate(runs, 1)
    ]


def _settings(runs: Sequence[RunData]) -> dict[str, tuple[str, ...]]:
    every: list[dict[str, str]] = [
        {
            **run.lineage.settings,
            **{f"input {name}": value for name, value in run.lineage.inputs.items()},
            **{f"version of {name}": value for name, value in run.lineage.versions.items()},
            "ran on": run.lineage.ran_on or "",
        }
        for run in runs
    ]
    names = sorted({name for settings in every for name in settings})
    rows = {name: tuple(settings.get(name, "") for settings in every) for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def _difference(metric: str, place: int, first: Measured, other: Measured) -> Difference:
    of_both = [measured.deviations.get(metric) for measured in (first, other)]
    paired = first.rows_digest is not None and first.rows_digest == other.rows_digest
    margin = None
    if of_both[0] and of_both[1]:
        if paired and len(of_both[0]) == len(of_both[1]):
            margin = margin_of(np.subtract(of_both[1], of_both[0]))
        else:
            paired = False
            margin = math.hypot(*(margin_of(deviations) for deviations in of_both if deviations))
    return Difference(
        metric=metric,
        run=place,
        value=other.metrics[metric] - first.metrics[metric],
        margin=margin,
        paired=paired and margin is not None,
    )


def _worse_slices(first: Measured | None, last: Measured | None) -> tuple[SliceDifference, ...]:
    if first is None or last is None:
        return ()
    before = {one.name: one for one in first.slices}
    found = [
        SliceDifference(
            name=one.name,
            metric=metric,
            before=before[one.name].metrics[metric],
            after=value,
            num_examples=one.num_examples,
        )
        for one in last.slices
        if one.name in before
        for metric, value in one.metrics.items()
        if metric in before[one.name].metrics
    ]
    worse = [each for each in found if each.worse_by > 0]
    return tuple(sorted(worse, key=lambda each: -each.worse_by))
