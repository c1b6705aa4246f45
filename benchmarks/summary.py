"""Summarizes rounds as medians and ratios with intervals."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import scipy.stats

from benchmarks.rounds import Round


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number to compare."""

    field: str
    title: str
    higher_is_better: bool
    digits: int = 0


METRICS = (
    Metric("train_steps_per_second", "train steps/s", higher_is_better=True),
    Metric("eval_examples_per_second", "evaluate examples/s", higher_is_better=True),
    Metric("predict_examples_per_second", "predict examples/s", higher_is_better=True),
    Metric("build_seconds", "graph build, s", higher_is_better=False, digits=2),
    Metric("train_end_seconds", "end of train, s", higher_is_better=False, digits=2),
    Metric("first_step_seconds", "first step, s", higher_is_better=False, digits=1),
    Metric("memory_mb", "peak memory, MiB", higher_is_better=False),
)


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number measured in several rounds."""

    # The median of the rounds, and its 95 % interval by bootstrap; NaN for too few rounds.
    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The interval's width relative to the number."""
        return (self.high - self.low) / self.value


@dataclasses.dataclass(frozen=True)
class Cell:
    """One metric of one contender on one model."""

    median: float
    # The number divided by the baseline's in the same round.
    ratio: Interval


@dataclasses.dataclass(frozen=True)
class Row:
    """One contender on one model."""

    contender: str
    # By the metric's field; empty if the contender failed.
    cells: Mapping[str, Cell]
    failure: str | None = None
    eval_losses: tuple[float, ...] = ()


def summarize(rounds: Sequence[Round], contenders: Sequence[str], *, baseline: str) -> list[Row]:
    """Summarizes one model."""
    failures = {name: why for each in rounds for name, why in each.failures.items()}
    rows = []
    for name in contenders:
        runs = [each.measured[name] for each in rounds if name in each.measured]
        if name in failures:
            rows.append(Row(name, {}, failure=failures[name]))
        elif runs:
            cells = {
                metric.field: Cell(
                    median=interval([getattr(run, metric.field) for run in runs]).value,
                    ratio=interval(ratios(rounds, metric.field, name, [baseline])),
                )
                for metric in METRICS
            }
            losses = tuple(run.eval_loss for run in runs if run.eval_loss is not None)
            rows.append(Row(name, cells, eval_losses=losses))
    return rows


def ratios(
    rounds: Sequence[Round],
    field: str,
    contender: str,
    references: Sequence[str],
    *,
    best: Callable[[Iterable[float]], float] = max,
) -> list[float]:
    """Divides a contender's number by another's of the same round.

    The machine's state in a round affected both.
    """
    found = []
    for each in rounds:
        if all(name in each.measured for name in (contender, *references)):
            number = getattr(each.measured[contender], field)
            others = [getattr(each.measured[name], field) for name in references]
            if not any(map(math.isnan, (number, *others))):
                found.append(number / (best(others) if others else 1.0))
    return found


def interval(values: Sequence[float]) -> Interval:
    """Returns the median of numbers with its 95 % interval by bootstrap."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Interval(math.nan, math.nan, math.nan)
    median = statistics.median(known)
    if len(known) == 1:
        return Interval(median, math.nan, math.nan)
    if len(set(known)) == 1:
        return Interval(median, median, median)
    found = scipy.stats.bootstrap(
        (known,), np.median, method="percentile", random_state=np.random.default_rng(1)
    ).confidence_interval
    return Interval(median, float(found.low), float(found.high))
