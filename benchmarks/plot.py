"""The plot of a benchmark: a row for each model, a column for each metric."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl

from benchmarks.contenders import CONTENDERS
from benchmarks.plan import TITLES
from benchmarks.report import Report
from benchmarks.summary import METRICS

# No display is needed, nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

_COLORS = {"ours": "#1a7f5a", "real": "#b3541e"}
_OTHER = "#8fa3b0"


def draw(report: Report, path: Path) -> None:
    """Draws the medians of a report."""
    models = list(report.summaries)
    most_rows = max(len(rows) for rows in report.summaries.values())
    figure, grid = plt.subplots(
        len(models),
        len(METRICS),
        figsize=(3.2 * len(METRICS), (0.32 * most_rows + 0.9) * len(models)),
        squeeze=False,
        layout="constrained",
    )
    for line, model in zip(grid, models):
        # Beside what its input alone could give, the CNN's bars would not be seen.
        rows = [row for row in report.summaries[model] if row.cells and row.contender != "input"]
        names = [CONTENDERS[row.contender].title for row in rows]
        colors = [_COLORS.get(row.contender.partition("-")[0], _OTHER) for row in rows]
        for column, (axes, metric) in enumerate(zip(line, METRICS)):
            medians = [row.cells[metric.field].median for row in rows]
            medians = [0 if math.isnan(median) else median for median in medians]
            bars = axes.barh(names, medians, color=colors)
            axes.bar_label(bars, fmt=f"{{:,.{metric.digits}f}}", fontsize=7, padding=2)
            axes.invert_yaxis()
            axes.margins(x=0.25)
            axes.set_xticks([])
            axes.tick_params(labelsize=7, labelleft=column == 0)
            axes.spines[["top", "right"]].set_visible(False)
            better = "more is better" if metric.higher_is_better else "less is better"
            axes.set_title(f"{metric.title} ({better})", fontsize=8)
        line[0].set_ylabel(TITLES[model], fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)
