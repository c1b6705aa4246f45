"""Draws static SVG charts with Vega-Lite; each chart comes with a table of its numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

import vl_convert

from tfx_tpu_trainer.components.report._run_data import Curve, Series

_VEGA_LITE = "5.20"
# A phone shows a chart at four fifths of its size; 12-point labels stay readable.
_WIDTH, _HEIGHT, _LETTERS = 340, 180, 12
# The page's width on a desktop. The axis turns logarithmic when the largest value is _FAR times the smallest.
_FULL_WIDTH, _FULL_HEIGHT, _FAR = 1000, 240, 20
_MOST_ROWS = 25
_MOST_NUMBERED = 12
_LONGEST_NAME = 160
_LONGEST_BESIDE = 16
_ALWAYS_COLORED = ("training", "eval")
_INK = "currentColor"
# Distinguishable on white, on black, and for colour-blind readers.
COLORS = ["#2f7fc1", "#d9772b", "#1b9e77", "#a463b0", "#c2a000", "#7f7f7f"]
_CONFIG: dict[str, Any] = {
    # The chart's own label describes it; the table below holds every value.
    "aria": False,
    "background": None,
    # The reader's font may be wider than the font with which Vega measured.
    "padding": {"left": 24, "right": 24, "top": 4, "bottom": 4},
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "domainColor": _INK,
        "tickColor": _INK,
        "gridColor": _INK,
        "gridOpacity": 0.12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "labelFontSize": _LETTERS,
        "titleFontSize": _LETTERS,
        "labelOverlap": "parity",
        "labelSeparation": 8,
    },
    "legend": {
        "labelColor": _INK,
        "title": None,
        "orient": "top",
        "labelFontSize": _LETTERS,
        "labelLimit": 280,
    },
    "range": {"category": COLORS},
    "mark": {"color": COLORS[0]},
    "text": {"color": _INK, "fontSize": _LETTERS},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """The numbers of a chart.

    Attributes:
        head: Titles of the columns.
        rows: Each row's cells, formatted.
        says: A remark on omitted rows; `""` if there are none.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    says: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A picture and a table of its numbers."""

    title: str
    svg: str  # `""` if there is nothing to draw
    table: Table
    full_width: str = ""  # the picture at the page's width; `""` if the small one is enough


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line in a chart over steps."""

    step: int
    name: str  # its label, such as `"exported"`


def number_text(value: float) -> str:
    """Formats a number for people: four digits, with thousands separators."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def draw_series(
    name: str, series: Sequence[Series], marks: Sequence[Mark] = (), *, full_width: bool = False
) -> Chart:
    """Draws a scalar over the training steps, one line for each source."""
    points: list[dict[str, Any]] = [
        {"step": step, "value": value, "source": each.source}
        for each in series
        for step, value in zip(each.steps, each.values)
        if math.isfinite(value)
    ]
    x = {"field": "step", "type": "quantitative", "axis": {"title": "step", "tickCount": 6}}
    # A first loss far above all others would flatten the rest of the line.
    drawn = [point["value"] for point in points] if full_width else [0.0]
    is_log = 0 < min(drawn, default=0) * _FAR < max(drawn, default=0)
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": points},
            "mark": {"type": "line", "strokeWidth": 1.5, "point": len(points) < 60},
            "encoding": {
                "x": x,
                "y": {
                    "field": "value",
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False} if is_log else {"zero": False},
                    "axis": {"title": "logarithmic" if is_log else None, "tickCount": 5},
                },
                "color": _source_colors([each.source for each in series]),
            },
        }
    ]
    if marks:
        across: dict[str, Any] = {
            "data": {"values": [dataclasses.asdict(mark) for mark in marks]},
            "encoding": {"x": x},
        }
        # The label is above the plot, where the line ends.
        says = {"type": "text", "align": "right", "baseline": "bottom", "y": -3}
        layers += [
            {
                **across,
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": _INK, "opacity": 0.6},
            },
            {**across, "mark": says, "encoding": {"x": x, "text": {"field": "name"}}},
        ]
    label = f"{name} by step: " + "; ".join(_in_words(each) for each in series)
    wide = {"layer": layers, "height": _FULL_HEIGHT, "width": _FULL_WIDTH}
    return Chart(
        title=name,
        svg=drawn_svg({"layer": layers, "height": _HEIGHT}, label) if points else "",
        table=_series_table(series),
        full_width=drawn_svg(wide, label) if points and full_width else "",
    )


def _source_colors(sources: Sequence[str]) -> dict[str, Any]:
    """Gives training and evaluation the same colours on every chart of a page."""
    legend = legend_of(sources)
    # Compared runs have their own names.
    fixed = _ALWAYS_COLORED if set(sources) & set(_ALWAYS_COLORED) else ()
    return {
        "field": "source",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": list(dict.fromkeys([*fixed, *sources]))},
        "legend": legend and {**legend, "values": list(sources)},
    }


def legend_of(names: Sequence[str]) -> dict[str, Any] | None:
    """Returns the legend of a chart's colours; `None` if there is only one."""
    if len(names) < 2:
        return None
    # Long names are stacked, since they would overlap in a row.
    return {"columns": 1} if max(map(len, names)) > _LONGEST_BESIDE else {"columnPadding": 24}


def _in_words(series: Series) -> str:
    first, last = series.values[0], series.values[-1]
    return (
        f"{series.source} from {number_text(first)} at step {series.steps[0]:,} "
        f"to {number_text(last)} at step {series.steps[-1]:,}"
    )


def _series_table(series: Sequence[Series]) -> Table:
    by_step: dict[int, dict[str, float]] = {}
    for each in series:
        for step, value in zip(each.steps, each.values):
            by_step.setdefault(step, {})[each.source] = value
    # Evaluations are few, so the table keeps all of them.
    kept = {step for each in series if each.source != "training" for step in each.steps}
    steps = sorted(by_step)
    every = -(-len(steps) // _MOST_ROWS)
    shown = sorted({*steps[every - 1 :: max(1, every)], *_thinned(sorted(kept)), *steps[-1:]})
    return Table(
        head=("step", *(each.source for each in series)),
        rows=tuple(
            (
                f"{step:,}",
                *(
                    number_text(by_step[step][each.source]) if each.source in by_step[step] else ""
                    for each in series
                ),
            )
            for step in shown
        ),
        says=(
            f"{len(shown)} of {len(steps)} steps; run.json has them all."
            if len(shown) < len(steps)
            else ""
        ),
    )


def _thinned(steps: Sequence[int]) -> Sequence[int]:
    return steps[:: max(1, -(-len(steps) // _MOST_ROWS))]


def draw_curve(curve: Curve, *, diagonal: bool) -> Chart:
    """Draws a curve over two numbers."""
    points = [{"x": x, "y": y, "at": n} for n, (x, y) in enumerate(zip(curve.x, curve.y))]
    axes = {
        name: {"field": name, "type": "quantitative", "axis": {"title": title, "tickCount": 5}}
        for name, title in (("x", curve.x_name), ("y", curve.y_name))
    }
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": points},
            "mark": {"type": "line", "strokeWidth": 1.5, "point": len(points) < 60},
            "encoding": {**axes, "order": {"field": "at", "type": "quantitative"}},
        }
    ]
    if diagonal:
        ends = [{"x": 0, "y": 0}, {"x": 1, "y": 1}]
        mark = {"type": "line", "color": _INK, "opacity": 0.4, "strokeDash": [4, 3]}
        layers.append({"data": {"values": ends}, "mark": mark, "encoding": axes})
    every = max(1, -(-len(points) // _MOST_ROWS))
    shown = [*range(0, len(points) - 1, every), len(points) - 1] if points else []
    return Chart(
        title=curve.name,
        svg=drawn_svg(
            {"layer": layers, "height": _HEIGHT},
            f"{curve.name}: {curve.y_name} by {curve.x_name}, {len(points)} points",
        )
        if points
        else "",
        table=Table(
            head=(curve.x_name, curve.y_name),
            rows=tuple((number_text(curve.x[n]), number_text(curve.y[n])) for n in shown),
            says=f"{len(shown)} of {len(points)} points; run.json has them all."
            if len(shown) < len(points)
            else "",
        ),
    )


def draw_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str] = ()) -> Chart:
    """Draws a confusion matrix; each row's colours are shares of its class."""
    # The number distinguishes classes with the same name.
    names = [cut(name) for name in classes] or [str(n) for n in range(len(confusion))]
    if len(set(names)) < len(names):
        names = [f"{n}: {name}" for n, name in enumerate(names)]
    cells = [
        {
            "label": names[n],
            "prediction": names[m],
            "share": count / max(1, sum(row)),
            "rows": number_text(count),
        }
        for n, row in enumerate(confusion)
        for m, count in enumerate(row)
    ]
    right = sum(row[n] for n, row in enumerate(confusion))
    total = sum(map(sum, confusion))
    # Labels that don't fit side by side are rotated.
    room = _WIDTH / len(confusion) / (_LETTERS * 0.6)
    is_turned = max(map(len, names)) > room
    across = {"labelAngle": -45 if is_turned else 0, "labelLimit": 120, "labelOverlap": False}
    axes = {
        "x": {"field": "prediction", "type": "ordinal", "sort": None, "axis": across},
        "y": {
            "field": "label",
            "type": "ordinal",
            "sort": None,
            "axis": {"labelLimit": 120, "titlePadding": 24},
        },
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rect", "color": COLORS[0]},
            "encoding": {
                "opacity": {
                    "field": "share",
                    "type": "quantitative",
                    "scale": {"domain": [0, 1], "range": [0.04, 0.85]},
                    "legend": None,
                }
            },
        }
    ]
    if len(confusion) <= _MOST_NUMBERED:
        layers.append({"mark": "text", "encoding": {"text": {"field": "rows"}}})
    size = max(_WIDTH // 2, min(_WIDTH, 30 * len(confusion)))
    return Chart(
        title="Confusion matrix",
        svg=drawn_svg(
            {"data": {"values": cells}, "encoding": axes, "layer": layers, "height": size},
            f"Confusion matrix: {right:,} of {total:,} rows are on its diagonal",
        ),
        table=Table(
            head=("label", *(f"taken for {name}" for name in names)),
            rows=tuple((name, *map(number_text, row)) for name, row in zip(names, confusion)),
        ),
    )


def cut(text: str) -> str:
    """Shortens a name for display."""
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"


def drawn_svg(spec: Mapping[str, Any], label: str) -> str:
    """Draws a chart of Vega-Lite; a screen reader reads its label."""
    drawn = _drawn(json.dumps({"width": _WIDTH, "config": _CONFIG, **spec}))
    # Vega labels its groups of marks for assistive technology even with aria off.
    return drawn.replace("<svg ", f'<svg role="img" aria-label={quoteattr(label)} ', 1)


# A pipeline's process writes a run's page twice: after the training, and with the gate's verdict.
@functools.lru_cache(maxsize=64)
def _drawn(spec: str) -> str:
    return str(vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE))
