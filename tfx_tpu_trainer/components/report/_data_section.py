"""The part of a run's page about its data: rows, features, and how far two sets of rows are apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tfx_tpu_trainer.components.report._charts import Chart, Table, cut, draw_bars, number_text
from tfx_tpu_trainer.components.report._html import Section
from tfx_tpu_trainer.components.report._run_data import Data, Drift, FeatureOfSplit, RunData

_MOST_FEATURES = 30
_MOST_BARS = 15
_MOST_NAMES = 10


def data_section(run: RunData) -> Section:
    """Arranges what is known of a run's data."""
    data = run.data
    if data is None:
        return Section(
            title="Data",
            says="The statistics of its raw examples are unknown: give TpuTrainer "
            "statistics=statistics_gen.outputs['statistics'].",
        )
    says = ", ".join(f"{rows:,} rows in {cut(name)}" for name, rows in data.splits.items())
    says += f"; {data.all_features:,} feature{'s' * (data.all_features != 1)}."
    changed = [line for drift in data.drift for line in _changed(drift)]
    of_baseline = [drift for drift in data.drift if "baseline" in drift.against]
    for drift in of_baseline:
        if not _differs(drift):
            says += " TFDV finds no difference from the baseline's data."
        else:
            farthest = drift.distances[0]
            says += (
                f" Farthest from the baseline's data is {cut(farthest.feature)} "
                f"({farthest.measure} {number_text(farthest.value)})."
            )
    notes = [*changed]
    if not of_baseline:
        notes.append("No statistics of a baseline's data are available for comparison.")
    if any(map(_differs, data.drift)):
        notes.append(
            "Distances are TFDV's: for strings the largest difference of a share (L-infinity), "
            "for numbers the Jensen-Shannon divergence of their histograms. Their buckets are of "
            "equal width, so a single far outlier can make the distance large."
        )
    return Section(
        title="Data",
        says=says,
        mood="warn" if changed else "",
        charts=tuple(_chart(drift) for drift in data.drift if _differs(drift)),
        tables={"Features": _features(data)} if data.features else {},
        notes=tuple(notes),
    )


def _differs(drift: Drift) -> bool:
    return any(each.value for each in drift.distances)


def _changed(drift: Drift) -> list[str]:
    return [
        f"Only {where} has {len(names):,} of the features: {_listed(names)}."
        for where, names in ((drift.rows, drift.new), (drift.against, drift.gone))
        if names
    ]


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(cut, names[:_MOST_NAMES])) + more


def _chart(drift: Drift) -> Chart:
    shown = drift.distances[:_MOST_BARS]
    chart = draw_bars(
        f"{cut(drift.rows)} against {cut(drift.against)}".capitalize(),
        {each.feature: each.value for each in shown},
        unit="distance",
    )
    listed = drift.distances[:_MOST_FEATURES]
    return dataclasses.replace(
        chart,
        table=Table(
            head=("feature", "distance", "measure"),
            rows=tuple(
                (cut(each.feature), number_text(each.value), each.measure) for each in listed
            ),
            says=_left_out(len(listed), len(drift.distances)),
        ),
    )


def _features(data: Data) -> Table:
    shown = data.features[:_MOST_FEATURES]
    return Table(
        head=("feature", "type", "missing", "typical", "range"),
        rows=tuple(
            (
                cut(feature.name),
                feature.kind,
                _missing(data, feature.by_split),
                *_values(next(iter(_largest_first(data, feature.by_split)))),
            )
            for feature in shown
            if feature.by_split
        ),
        says=_left_out(len(shown), data.all_features),
    )


def _largest_first(data: Data, by_split: Mapping[str, FeatureOfSplit]) -> list[FeatureOfSplit]:
    return [by_split[name] for name in sorted(by_split, key=lambda name: -data.splits[name])]


def _missing(data: Data, by_split: Mapping[str, FeatureOfSplit]) -> str:
    shares = [
        f"{_percent(of_split.missing / data.splits[name])} of {cut(name)}"
        for name, of_split in by_split.items()
        if of_split.missing and data.splits[name]
    ]
    return ", ".join(shares) or "none"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"


def _values(of_split: FeatureOfSplit) -> tuple[str, str]:
    if of_split.mean is not None and of_split.deviation is not None:
        assert of_split.least is not None
        assert of_split.greatest is not None
        return (
            f"{number_text(of_split.mean)} ± {number_text(of_split.deviation)}",
            f"{number_text(of_split.least)} to {number_text(of_split.greatest)}",
        )
    if of_split.unique is not None:
        return cut(of_split.most_frequent or ""), f"{of_split.unique:,} different"
    return "", ""


def _left_out(shown: int, of: int) -> str:
    return f"{shown:,} of {of:,}; run.json has more." if shown < of else ""
