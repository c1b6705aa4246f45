"""From measurements to medians and ratios."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.plan import Measurement


@dataclasses.dataclass(frozen=True)
class Metric:
    """One of the numbers that are compared.

    Attributes:
        field: The field of `Measurement`.
        title: What the tables call it.
        higher_is_better: Whether more is better.
        digits: Digits after the point.
    """

    field: str
    title: str
    higher_is_better: bool
    digits: int = 0


METRICS = (
    Metric("train_steps_per_second", "train steps/s", higher_is_better=True),
    Metric("eval_examples_per_second", "evaluate examples/s", higher_is_better=True),
    Metric("predict_examples_per_second", "predict examples/s", higher_is_better=True),
    Metric("first_step_seconds", "first step, s", higher_is_better=False, digits=1),
    Metric("memory_mb", "peak memory, MiB", higher_is_better=False),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One metric of one contender on one model.

    Attributes:
        median: The median over the repetitions; NaN where none gave a number.
        spread: The largest less the smallest, as a part of the median.
        ratio: The median divided by the baseline's; NaN without a baseline.
    """

    median: float
    spread: float
    ratio: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One contender on one model.

    Attributes:
        contender: Its name.
        cells: By the field of the metric; empty where it failed.
        failure: Why it failed, one line, or None.
        eval_losses: The losses after training that its repetitions found.
    """

    contender: str
    cells: Mapping[str, Cell]
    failure: str | None = None
    eval_losses: tuple[float, ...] = ()


def summarize(
    measurements: Mapping[str, Sequence[Measurement]],
    failures: Mapping[str, str],
    *,
    baseline: str,
) -> list[Row]:
    """Summarizes one model.

    Args:
        measurements: The repetitions of each contender, in the order of the table.
        failures: Why contenders failed, by name; such a contender has no numbers.
        baseline: The contender that the others are divided by.

    Returns:
        A row for each contender.
    """
    medians = {
        name: {metric.field: _median(runs, metric.field) for metric in METRICS}
        for name, runs in measurements.items()
        if name not in failures
    }
    rows = []
    for name, runs in measurements.items():
        if name in failures:
            rows.append(Row(name, {}, failure=failures[name]))
            continue
        cells = {
            field: Cell(
                median=median,
                spread=_spread(runs, field),
                ratio=median / medians[baseline][field] if baseline in medians else math.nan,
            )
            for field, median in medians[name].items()
        }
        losses = tuple(run.eval_loss for run in runs if run.eval_loss is not None)
        rows.append(Row(name, cells, eval_losses=losses))
    return rows


def _values(runs: Sequence[Measurement], field: str) -> list[float]:
    values = [getattr(run, field) for run in runs]
    return [value for value in values if not math.isnan(value)]


def _median(runs: Sequence[Measurement], field: str) -> float:
    values = _values(runs, field)
    return statistics.median(values) if values else math.nan


def _spread(runs: Sequence[Measurement], field: str) -> float:
    values = _values(runs, field)
    if not values:
        return math.nan
    return (max(values) - min(values)) / statistics.median(values)
