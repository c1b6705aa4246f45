"""Draws one bar for each name; each chart comes with a table of its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer.components.report._charts import (
    COLORS,
    Chart,
    Table,
    cut,
    drawn_svg,
    legend_of,
    number_text,
)

# Sizes next to the names of bars.
_BARS_WIDTH, _BAR, _LONGEST_BAR_NAME = 220, 20, 200
# The axis with the bars' names, in the given order.
_BAR_NAMES: dict[str, Any] = {
    "field": "name",
    "type": "nominal",
    "sort": None,
    "axis": {"title": None, "labelLimit": _LONGEST_BAR_NAME, "ticks": False, "domain": False},
}


def draw_bars(title: str, values: Mapping[str, float], *, unit: str) -> Chart:
    """Draws one bar for each name, in the given order."""
    bars = [
        {"name": cut(name), "value": value, "text": number_text(value)}
        for name, value in values.items()
        if math.isfinite(value)
    ]
    x = {"field": "value", "type": "quantitative", "axis": {"title": unit, "tickCount": 5}}
    label = f"{title}: " + ", ".join(f"{bar['name']} {bar['text']} {unit}" for bar in bars[:10])
    spec = {
        "data": {"values": bars},
        "width": _BARS_WIDTH,
        "height": {"step": _BAR},
        "encoding": {"y": _BAR_NAMES, "x": x},
        "layer": [
            {"mark": {"type": "bar", "height": {"band": 0.7}}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"text": {"field": "text"}},
            },
        ],
    }
    return Chart(
        title=title,
        svg=drawn_svg(spec, label) if bars else "",
        table=Table(
            head=("", unit),
            rows=tuple((cut(name), number_text(value)) for name, value in values.items()),
        ),
    )


def draw_intervals(
    title: str, values: Mapping[str, tuple[float, tuple[float, float] | None]]
) -> Chart:
    """Draws a number of each run with its interval."""
    points: list[dict[str, Any]] = [
        {
            "name": cut(name),
            "value": value,
            "low": interval[0] if interval else value,
            "high": interval[1] if interval else value,
        }
        for name, (value, interval) in values.items()
        if all(map(math.isfinite, (value, *(interval or ()))))
    ]
    x = {
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": title, "tickCount": 5},
    }
    spec = {
        "data": {"values": points},
        "width": _BARS_WIDTH,
        "height": {"step": _BAR},
        "encoding": {"y": _BAR_NAMES},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2, "color": COLORS[0]},
                "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 50},
                "encoding": {"x": {"field": "value", **x}},
            },
        ],
    }
    label = f"{title}: " + ", ".join(
        f"{point['name']} {number_text(point['value'])}" for point in points[:10]
    )
    return Chart(
        title=title,
        svg=drawn_svg(spec, label) if points else "",
        table=Table(
            head=("run", title, "95 % interval"),
            rows=tuple(
                (
                    cut(name),
                    number_text(value),
                    " to ".join(map(number_text, interval)) if interval else "",
                )
                for name, (value, interval) in values.items()
            ),
        ),
    )


def draw_parts(
    title: str, parts: Mapping[str, Mapping[str, float]], *, unit: str, whole: float
) -> Chart:
    """Draws one stacked bar for each name."""
    kinds = list(dict.fromkeys(kind for of_bar in parts.values() for kind in of_bar))
    sums = {name: sum(of_bar.values()) for name, of_bar in parts.items()}
    pieces = []
    for name, of_bar in parts.items():
        begin = 0.0
        for kind, size in of_bar.items():
            end = begin + size
            pieces.append({"name": cut(name), "kind": kind, "begin": begin, "end": end})
            begin = end
    spec = {
        "data": {"values": pieces},
        "width": _BARS_WIDTH,
        "height": {"step": _BAR + 4},
        "encoding": {
            "y": _BAR_NAMES,
            "x": {
                "field": "begin",
                "type": "quantitative",
                "scale": {"domain": [0, whole], "nice": False},
                "axis": {"title": unit, "tickCount": 5},
            },
        },
        "layer": [
            {
                "mark": {"type": "bar", "height": {"band": 0.7}},
                "encoding": {
                    "x2": {"field": "end"},
                    "color": {
                        "field": "kind",
                        "type": "nominal",
                        "sort": None,
                        "scale": {"domain": kinds},
                        "legend": legend_of(kinds) or {},
                    },
                },
            },
            {
                "data": {
                    "values": [
                        {"name": cut(name), "begin": size, "text": number_text(size)}
                        for name, size in sums.items()
                    ]
                },
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"text": {"field": "text"}},
            },
        ],
    }
    label = f"{title}: " + ", ".join(
        f"{cut(name)} {number_text(size)} {unit}" for name, size in list(sums.items())[:10]
    )
    return Chart(
        title=title,
        svg=drawn_svg(spec, label) if pieces else "",
        table=Table(
            head=("", *kinds, f"together, {unit}"),
            rows=tuple(
                (
                    cut(name),
                    *(number_text(of_bar[kind]) if kind in of_bar else "" for kind in kinds),
                    number_text(sums[name]),
                )
                for name, of_bar in parts.items()
            ),
        ),
    )
