"""A picture of a search: one line a trial, over one axis for each hyperparameter and one for the objective."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras_tuner
import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tfx_tpu_trainer.components.tuning._results import TrialResult

_hp = keras_tuner.engine.hyperparameters
_TICKS = 5

Place = Callable[[Any], float]
"""Returns a value's position on an axis from 0 to 1."""


def draw(
    results: Sequence[TrialResult],
    space: keras_tuner.HyperParameters,
    *,
    objective: str,
    best_is_high: bool,
) -> bytes | None:
    """Draws the trials that have a score; the better, the darker, and the best one thick."""
    scored = [one for one in results if one.score is not None]
    if not scored:
        return None
    searched = {one.name: one for one in space.space if not isinstance(one, _hp.Fixed)}
    axes = [(name, *axis_of(one)) for name, one in searched.items()]
    scores = [one.score for one in scored if one.score is not None]
    lowest, highest = min(scores), max(scores)
    span = (highest - lowest) or 1.0
    axes.append((objective, _linear(lowest, lowest + span), _even_ticks(lowest, lowest + span)))

    figure = Figure(figsize=(2.2 * len(axes) + 1, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    plot = figure.add_subplot()
    colors = matplotlib.colormaps["viridis_r" if best_is_high else "viridis"]
    # The best one is drawn last, over the others.
    for rank, one in reversed(list(enumerate(scored))):
        places = [
            math.nan if (value := one.values.get(name)) is None else place(value)
            for name, place, _ in axes[:-1]
        ]
        height = axes[-1][1](one.score)
        plot.plot(
            range(len(axes)),
            [*places, height],
            color=colors(height),
            linewidth=3.0 if rank == 0 else 1.2,
            marker="o",
            markersize=3,
        )
    for index, (_, _, ticks) in enumerate(axes):
        plot.axvline(index, color="0.6", linewidth=0.8, zorder=0)
        for place_of_tick, label in ticks:
            plot.annotate(
                label,
                (index, place_of_tick),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
            )
    plot.set_xticks(range(len(axes)), [name for name, _, _ in axes])
    plot.set_yticks([])
    plot.set_ylim(-0.05, 1.05)
    plot.set_xlim(-0.1, len(axes) - 0.6)
    plot.spines[:].set_visible(False)
    plot.set_title(
        f"{len(scored)} trials; the thick line is trial {scored[0].trial_id}", fontsize=9
    )
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=120)
    return written.getvalue()


def axis_of(one: Any) -> tuple[Place, list[tuple[float, str]]]:
    """Returns where values of a hyperparameter stand, and the labels of its axis."""
    if isinstance(one, (_hp.Choice, _hp.Boolean)):
        values = [False, True] if isinstance(one, _hp.Boolean) else list(one.values)
        last = max(len(values) - 1, 1)
        # In another process keras-tuner's messages round what a float is.
        places = {_key(value): index / last for index, value in enumerate(values)}
        labels = [(index / last, str(value)) for index, value in enumerate(values)]
        return (lambda value: places.get(_key(value), math.nan)), labels
    lowest, highest = float(one.min_value), float(one.max_value)
    if one.sampling in ("log", "reverse_log") and lowest > 0:
        place = _linear(math.log(lowest), math.log(highest))
        ticks = [
            (share, f"{lowest * (highest / lowest) ** share:.3g}")
            for share in (index / (_TICKS - 1) for index in range(_TICKS))
        ]
        return (lambda value: place(math.log(value))), ticks
    return _linear(lowest, highest), _even_ticks(lowest, highest)


def _linear(lowest: float, highest: float) -> Place:
    span = (highest - lowest) or 1.0
    return lambda value: (value - lowest) / span


def _even_ticks(lowest: float, highest: float) -> list[tuple[float, str]]:
    shares = (index / (_TICKS - 1) for index in range(_TICKS))
    return [(share, f"{lowest + share * (highest - lowest):.4g}") for share in shares]


def _key(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
