"""Arranges a comparison as one HTML page, and as lines for a terminal."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from tfx_tpu_trainer.components.report._charts import (
    Table,
    cut,
    draw_intervals,
    draw_series,
    number_text,
)
from tfx_tpu_trainer.components.report._comparison import Comparison, Difference
from tfx_tpu_trainer.components.report._events import TRAINING
from tfx_tpu_trainer.components.report._html import Section, render_sections
from tfx_tpu_trainer.components.report._run_data import Series

_MOST_CHARTS = 12
_MOST_METRICS = 6
_MOST_SLICES = 20
_MOST_CURVES = 6


def render_comparison(comparison: Comparison) -> str:
    """Returns the page of a comparison.

    Args:
        comparison: What is compared.

    Returns:
        HTML.
    """
    return render_sections(
        comparison_sections(comparison),
        title=f"{len(comparison.runs)} runs compared",
        written=time.time(),
        unread=[line for run in comparison.runs for line in run.unread],
    )


def comparison_sections(comparison: Comparison) -> list[Section]:
    """Arranges a comparison.

    Args:
        comparison: What is compared.

    Returns:
        The sections of its page.
    """
    return [
        _numbers(comparison),
        _settings(comparison),
        _learning(comparison),
        _slices(comparison),
    ]


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yields the metrics' differences, one a line."""
    for each in comparison.differences:
        yield f"{comparison.runs[each.run].title}: {each.metric} {_in_words(each)}"


def _in_words(each: Difference) -> str:
    margin = "" if each.margin is None else f" ± {number_text(each.margin)}"
    return f"{'+' if each.value >= 0 else ''}{number_text(each.value)}{margin}: {each.says}"


def _titles(comparison: Comparison) -> tuple[str, ...]:
    return tuple(cut(run.title) for run in comparison.runs)


def _numbers(comparison: Comparison) -> Section:
    runs, titles = comparison.runs, _titles(comparison)
    names = sorted({name for run in runs if run.measured for name in run.measured.metrics})
    by_metric = {(each.metric, each.run): each for each in comparison.differences}

    def cell(name: str, place: int) -> str:
        measured = runs[place].measured
        value = "" if measured is None else f"{measured.metrics.get(name, float('nan')):.6g}"
        each = by_metric.get((name, place))
        return value if each is None else f"{value} ({_in_words(each)})"

    certain = [each for each in comparison.differences if each.says in ("better", "worse")]
    says = f"Against {titles[0]}: "
    if certain:
        says += "; ".join(
            f"{titles[each.run]} is {each.says} by {each.metric} ({number_text(each.value)})"
            for each in certain[:6]
        )
    elif comparison.differences:
        says += "no difference exceeds noise"
    else:
        says += "no metric to compare"
    notes = [
        (
            "A difference is within noise if it is smaller than its margin, half of its 95 % "
            "interval: on other rows of the same kind it might change sign. Metrics named loss, "
            "error and the like are better when smaller."
        )
    ]
    if any(not each.paired and each.margin is not None for each in comparison.differences):
        notes.append(
            "Some runs were evaluated on other rows than the first one: their margins include the "
            "chance of both samples, and are wider than on the same rows."
        )
    return Section(
        title="Numbers",
        says=says + ".",
        charts=tuple(
            draw_intervals(cut(name), _values(comparison, name)) for name in names[:_MOST_METRICS]
        ),
        tables={
            "Metrics": Table(
                head=("metric", *titles),
                rows=tuple(
                    (cut(name), *(cell(name, place) for place in range(len(runs))))
                    for name in names
                ),
            )
        },
        notes=tuple(notes),
    )


def _values(
    comparison: Comparison, metric: str
) -> dict[str, tuple[float, tuple[float, float] | None]]:
    return {
        run.title: (run.measured.metrics[metric], run.measured.intervals.get(metric))
        for run in comparison.runs
        if run.measured and metric in run.measured.metrics
    }


def _settings(comparison: Comparison) -> Section:
    settings = comparison.settings
    return Section(
        title="Settings",
        says=f"{len(settings)} differ." if settings else "All known ones are the same.",
        tables={
            "Settings, inputs and versions that differ": Table(
                head=("setting", *_titles(comparison)),
                rows=tuple((cut(name), *map(cut, values)) for name, values in settings.items()),
            )
        }
        if settings
        else {},
    )


def _learning(comparison: Comparison) -> Section:
    by_name: dict[tuple[str, str], list[Series]] = {}
    # As many as there are colours.
    for run in comparison.runs[-_MOST_CURVES:]:
        for series in run.learning.series:
            if len(series.steps) > 1:
                of_run = dataclasses.replace(series, source=cut(run.title))
                by_name.setdefault((series.source, series.name), []).append(of_run)
    shared = {key: of for key, of in by_name.items() if len(of) > 1}
    keys = sorted(shared, key=lambda key: (key[1] != "loss", key[0] == TRAINING, key))
    return Section(
        title="Learning",
        says=f"{len(keys)} curves in common." if keys else "No curve exists in more than one run.",
        charts=tuple(
            draw_series(cut(f"{name}, {source}"), shared[source, name])
            for source, name in keys[:_MOST_CHARTS]
        ),
    )


def _slices(comparison: Comparison) -> Section:
    worse = comparison.worse_slices
    last, first = _titles(comparison)[-1], _titles(comparison)[0]
    if not worse:
        return Section(title="Slices", says=f"No slice is measurably worse in {last}.")
    return Section(
        title="Slices",
        says=f"Of {len(worse)} slices and metrics {last} is worse than {first}; this does not "
        "correct for chance.",
        mood="warn",
        tables={
            "The worst first": Table(
                head=("slice", "metric", "rows", first, last),
                rows=tuple(
                    (
                        cut(each.name),
                        cut(each.metric),
                        "" if each.num_examples is None else f"{each.num_examples:,}",
                        number_text(each.before),
                        number_text(each.after),
                    )
                    for each in worse[:_MOST_SLICES]
                ),
                says="" if len(worse) <= _MOST_SLICES else f"{_MOST_SLICES} of {len(worse)}.",
            )
        },
    )
