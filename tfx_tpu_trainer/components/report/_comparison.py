"""Compares runs: settings, code, data, and whether the metrics differ by more than chance."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from tfx_tpu_trainer.components.report._bar_charts import draw_intervals
from tfx_tpu_trainer.components.report._charts import (
    Table,
    cut,
    draw_series,
    number_text,
)
from tfx_tpu_trainer.components.report._errors import margin_of
from tfx_tpu_trainer.components.report._run_data import (
    TRAINING,
    FeatureOfSplit,
    Measured,
    RunData,
    Series,
)
from tfx_tpu_trainer.components.report._sections import Section, render_sections

_MOST_CHARTS = 12
_MOST_METRICS = 6
_MOST_SLICES = 20
_MOST_CURVES = 6
_MOST_FEATURES = 20
_NONE = "–"
# Digits shown of a code digest.
_DIGITS = 9
# Metrics whose names contain one of these are better when smaller; all others are better when larger.
_LESS_IS_BETTER = ("loss", "error", "entropy", "mse", "mae", "rmse", "deviance")


def less_is_better(metric: str) -> bool:
    """Returns whether a smaller value of this metric is better, judging by its name."""
    return any(part in metric.lower() for part in _LESS_IS_BETTER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a metric between a run and the first one."""

    metric: str
    run: int  # the run's index among those compared
    value: float
    margin: float | None  # half of the 95 % interval; `None` if a run has no interval
    # Whether the interval is that of paired rows, which excludes chance that both runs share.
    paired: bool

    @property
    def says(self) -> Literal["better", "worse", "within noise", "not known"]:
        """Describes whether the run is better than the first one, and whether chance explains it."""
        if self.margin is None or not math.isfinite(self.value):
            return "not known"
        if abs(self.value) <= self.margin:
            return "within noise"
        return "better" if (self.value < 0) == less_is_better(self.metric) else "worse"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceDifference:
    """The difference of a slice's metric between the last run and the first one."""

    name: str  # the slice's name
    metric: str
    before: float  # in the first run
    after: float  # in the last run
    num_examples: int | None  # the slice's rows in the last run; `None` if unknown

    @property
    def worse_by(self) -> float:
        """How much worse the last run is; negative if it is better."""
        change = self.after - self.before
        return change if less_is_better(self.metric) else -change


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between runs."""

    runs: tuple[RunData, ...]
    # Setting or version that differs -> its value in each run; `""` if a run has none.
    settings: dict[str, tuple[str, ...]]
    # The same for the data: inputs, rows of splits, statistics of features.
    data: dict[str, tuple[str, ...]]
    # Title of a run -> how its code differs from the first run's, as a unified diff or a sentence.
    code: dict[str, str]
    differences: tuple[Difference, ...]  # Differences from the first run, metric by metric.
    # Slices on which the last run is worse than the first one, the worst first.
    worse_slices: tuple[SliceDifference, ...]


def compare(runs: Sequence[RunData]) -> Comparison:
    """Compares runs with the first one.

    Args:
        runs: The runs, at least two.

    Returns:
        The differences.

    Raises:
        ValueError: If there are fewer than two.
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
        settings=_differing([_settings(run) for run in runs]),
        data=_differing([dict(_data(run)) for run in runs]),
        code={run.title: text for run in runs[1:] if (text := _code_diff(runs[0], run))},
        differences=tuple(differences),
        worse_slices=_worse_slices(first, runs[-1].measured),
    )


def _told_apart(runs: Sequence[RunData]) -> list[RunData]:
    """Numbers runs that share a title."""
    titles = [run.title for run in runs]
    return [
        run
        if titles.count(run.title) == 1
        else dataclasses.replace(run, title=f"{run.title} ({place})")
        for place, run in enumerate(runs, 1)
    ]


def _differing(every: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    names = dict.fromkeys(name for values in every for name in values)
    rows = {name: tuple(values.get(name, "") for values in every) for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def _settings(run: RunData) -> dict[str, str]:
    lineage = run.lineage
    settings = dict(
        sorted(each for setting in lineage.settings.items() for each in _parts(*setting))
    )
    versions = {f"version of {name}": value for name, value in lineage.versions.items()}
    return {**settings, **versions, "ran on": lineage.ran_on or ""}


def _parts(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Yields a setting, or those in one that is a dict, such as `params`."""
    try:
        inside = ast.literal_eval(value) if value.startswith("{") else None
    except (ValueError, SyntaxError):
        inside = None
    if not isinstance(inside, dict):
        yield name, value
        return
    for key, each in inside.items():
        yield from _parts(f"{name}.{key}", str(each))


def _data(run: RunData) -> Iterator[tuple[str, str]]:
    for name, value in run.lineage.inputs.items():
        yield f"input {name}", value
    if run.data is None:
        return
    for name, rows in run.data.splits.items():
        yield f"rows in {name}", f"{rows:,}"
    for feature in run.data.features:
        first = next(iter(feature.by_split.values()), None)
        if first is not None:
            yield f"feature {feature.name}", _typical(first)


def _typical(feature: FeatureOfSplit) -> str:
    missing = f"{feature.missing:,} missing"
    if feature.mean is not None and feature.deviation is not None:
        return f"{number_text(feature.mean)} ± {number_text(feature.deviation)}, {missing}"
    if feature.unique is not None:
        mostly = feature.most_frequent and f", mostly {cut(feature.most_frequent)}"
        return f"{feature.unique:,} different{mostly or ''}, {missing}"
    return missing


def _code_diff(first: RunData, run: RunData) -> str:
    """Returns the difference between a run's code and the first one's; "" if there is none or it is unknown."""
    one, other = first.lineage, run.lineage
    if not one.source or not other.source:
        if not one.code or not other.code or one.code == other.code:
            return ""
        was, now = (code[: code.find("@") + _DIGITS] for code in (one.code, other.code))
        return f"{was} became {now}; the source was not kept with both."
    lines: list[str] = []
    for name in sorted({*one.source, *other.source}):
        before, after = (lineage.source.get(name, "").splitlines() for lineage in (one, other))
        lines += difflib.unified_diff(
            before, after, f"{first.title}/{name}", f"{run.title}/{name}", lineterm=""
        )
    return "\n".join(lines)


def _difference(metric: str, place: int, first: Measured, other: Measured) -> Difference:
    # Both runs resample with the same seed, so on the same rows both draw the same sample k. The spread of the
    # differences then excludes the luck of the shared rows: {-2, 0, 2} and {-1, 0, 3} differ by {1, 0, 1}, a fraction
    # of either spread. On different rows the samples are independent, and the variances add up.
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


def render_comparison(comparison: Comparison, sections: Sequence[Section] | None = None) -> str:
    """Renders the page of a comparison.

    Args:
        comparison: The comparison.
        sections: Its sections, if already made. Defaults to `None`: `comparison_sections` makes them.

    Returns:
        HTML.
    """
    return render_sections(
        comparison_sections(comparison) if sections is None else sections,
        title=f"{len(comparison.runs)} runs compared",
        written=time.time(),
        unread=[line for run in comparison.runs for line in run.unread],
    )


def comparison_sections(comparison: Comparison) -> list[Section]:
    """Returns the sections of a comparison's page.

    Args:
        comparison: The comparison.

    Returns:
        The sections of its page.
    """
    return [
        _numbers_section(comparison),
        _settings_section(comparison),
        _code_section(comparison),
        _data_section(comparison),
        _learning_section(comparison),
        _slices_section(comparison),
    ]


def _in_words(each: Difference) -> str:
    margin = "" if each.margin is None else f" ± {number_text(each.margin)}"
    return f"{'+' if each.value >= 0 else ''}{number_text(each.value)}{margin}: {each.says}"


def _titles(comparison: Comparison) -> tuple[str, ...]:
    return tuple(cut(run.title) for run in comparison.runs)


def _numbers_section(comparison: Comparison) -> Section:
    runs, titles = comparison.runs, _titles(comparison)
    names = sorted({name for run in runs if run.measured for name in run.measured.metrics})
    by_metric = {(each.metric, each.run): each for each in comparison.differences}

    def cell(name: str, place: int) -> str:
        measured = runs[place].measured
        if measured is None or name not in measured.metrics:
            return _NONE
        value = f"{measured.metrics[name]:.6g}"
        each = by_metric.get((name, place))
        return value if each is None else f"{value} ({_in_words(each)})"

    certain = [each for each in comparison.differences if each.says in ("better", "worse")]
    says = f"Against {titles[0]}: "
    if certain:
        says += "; ".join(
            f"{titles[place]} is {how} by {', '.join(names)}"
            for (place, how), names in _grouped(certain).items()
        )
    elif comparison.differences:
        says += "no difference exceeds noise"
    else:
        says += "no metric to compare"
    # The table has all values; a chart shows which intervals overlap.
    drawn = {name: _values(comparison, name) for name in names[:_MOST_METRICS]}
    notes = [
        (
            "A difference is within noise if it is smaller than its margin, half of its 95 % "
            "interval: on other rows of the same kind it might change sign. Metrics with "
            "names such as loss or error are better when smaller."
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
            draw_intervals(cut(name), values)
            for name, values in drawn.items()
            if any(interval for _, interval in values.values())
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


def _grouped(certain: Sequence[Difference]) -> dict[tuple[int, str], list[str]]:
    found: dict[tuple[int, str], list[str]] = {}
    for each in certain:
        name = f"{each.metric} ({number_text(each.value)})"
        found.setdefault((each.run, each.says), []).append(name)
    return found


def _values(
    comparison: Comparison, metric: str
) -> dict[str, tuple[float, tuple[float, float] | None]]:
    return {
        run.title: (run.measured.metrics[metric], run.measured.intervals.get(metric))
        for run in comparison.runs
        if run.measured and metric in run.measured.metrics
    }


def _settings_section(comparison: Comparison) -> Section:
    settings = comparison.settings
    return Section(
        title="Settings",
        says="" if settings else "All known settings are the same.",
        tables=_tables("Settings and versions that differ", "setting", settings, comparison),
    )


def _tables(
    caption: str,
    what: str,
    rows: Mapping[str, Sequence[str]],
    comparison: Comparison,
    most: int = 0,
) -> dict[str, Table]:
    if not rows:
        return {}
    shown = list(rows.items())[: most or None]
    table = Table(
        head=(what, *_titles(comparison)),
        rows=tuple((cut(name), *(cut(each) or _NONE for each in of)) for name, of in shown),
        says="" if len(shown) == len(rows) else f"{len(shown)} of {len(rows)}.",
    )
    return {caption: table}


def _code_section(comparison: Comparison) -> Section:
    runs, first = comparison.runs, _titles(comparison)[0]
    says = "The source is the same." if all(run.lineage.source for run in runs) else "Unknown."
    if all(run.lineage.code for run in runs) and len({run.lineage.code for run in runs}) == 1:
        says = "The same."
    return Section(
        title="Code",
        says="" if comparison.code else says,
        code={f"{cut(title)} against {first}": text for title, text in comparison.code.items()},
    )


def _data_section(comparison: Comparison) -> Section:
    known = all(run.data is not None for run in comparison.runs)
    says = "The same inputs." if known else "The same inputs; without statistics no more is known."
    return Section(
        title="Data",
        says="" if comparison.data else says,
        tables=_tables(
            "Inputs, rows and features that differ",
            "",
            comparison.data,
            comparison,
            most=_MOST_FEATURES,
        ),
    )


def _learning_section(comparison: Comparison) -> Section:
    by_name: dict[tuple[str, str], list[Series]] = {}
    # One colour for each run.
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


def _slices_section(comparison: Comparison) -> Section:
    worse = comparison.worse_slices
    last, first = _titles(comparison)[-1], _titles(comparison)[0]
    if not worse:
        return Section(title="Slices", says=f"No slice is measurably worse in {last}.")
    return Section(
        title="Slices",
        says=f"{last} is worse than {first} in {len(worse)} slices and metrics; this does not "
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
