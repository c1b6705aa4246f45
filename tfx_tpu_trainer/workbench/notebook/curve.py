"""A learning curve as a picture."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure

from tfx_tpu_trainer.components.evaluation import LearningCurve

_MOST_METRICS = 4
_LOSS = "loss"


def draw_curve(curve: LearningCurve) -> str:
    """Draws the metrics of a training's evaluations over its steps, each in axes of its own."""
    names = _names(curve)
    figure = Figure(figsize=(4 * len(names), 2.8), layout="constrained")
    steps = [point.step for point in curve.points]
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
        axes.plot(steps, [point.metrics.overall[name] for point in curve.points], marker=".")
        if curve.best is not None:
            best = curve.best
            axes.plot(best.step, best.metrics.overall[name], "o", mfc="none", ms=12)
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    drawn = io.StringIO()
    # The same curve is the same text: no date, and no ids by chance.
    with matplotlib.rc_context({"svg.hashsalt": __name__}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


def _names(curve: LearningCurve) -> list[str]:
    """Returns the metrics that all points have, as many as are drawn."""
    common = set.intersection(*(set(point.metrics.overall) for point in curve.points))
    first = [curve.goal.metric] if curve.goal is not None else []
    ordered = [*first, _LOSS, *sorted(common)]
    return [name for name in dict.fromkeys(ordered) if name in common][:_MOST_METRICS]
