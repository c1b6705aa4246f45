"""`python -m benchmarks.history VERSION RESULTS ...`: keeps what a release was measured at, and draws all of them.

What is kept is one results.json of all its rounds. What is drawn are the ratios to the original of the same round:
numbers of different machines and days can't be compared, ratios can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from packaging.version import InvalidVersion, Version

from benchmarks.contenders import CONTENDERS
from benchmarks.plan import TITLES
from benchmarks.results import RESULTS, read_rounds
from benchmarks.run import report_of
from benchmarks.summary import METRICS

# No display is needed, nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent / "history"
PLOT = "plot.png"


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads what was kept, by version, the oldest first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: Version(path.stem))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def ratios(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the ratios of ours to the original: by model, contender and metric, value, low and high."""
    found: dict[str, dict[str, Any]] = {}
    for model, rows in results["summaries"].items():
        for row in rows:
            of_row = {
                field: cell["ratio"]
                for field, cell in row["cells"].items()
                if cell["ratio"]["value"] is not None
            }
            if of_row and row["contender"].startswith("ours"):
                found.setdefault(model, {})[row["contender"]] = of_row
    return found


def draw(history: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draws the ratios over the versions: a row for each model, a column for each metric."""
    versions = list(history)
    drawn = [ratios(each) for each in history.values()]
    models = [m for m in TITLES if any(m in each for each in drawn)]
    figure, grid = plt.subplots(
        len(models),
        len(METRICS),
        figsize=(3.2 * len(METRICS), 2.4 * len(models)),
        squeeze=False,
        layout="constrained",
    )
    for line, model in zip(grid, models):
        of_model = [each.get(model, {}) for each in drawn]
        for axes, metric in zip(line, METRICS):
            for name in dict.fromkeys(name for each in of_model for name in each):
                cells = [each.get(name, {}).get(metric.field, {}) for each in of_model]
                values = [cell.get("value", math.nan) for cell in cells]
                if not all(map(math.isnan, values)):
                    axes.plot(range(len(versions)), values, marker="o", markersize=3, label=name)
            axes.axhline(1, color="#888888", linewidth=0.8)
            axes.set_xticks(range(len(versions)), versions, fontsize=7)
            axes.tick_params(axis="y", labelsize=7)
            better = "more is better" if metric.higher_is_better else "less is better"
            axes.set_title(f"{metric.title} / the original's ({better})", fontsize=8)
        line[0].set_ylabel(TITLES[model], fontsize=9)
        line[0].legend(fontsize=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)


@click.command()
@click.argument("version")
@RESULTS
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    help="Folder of the history. Defaults to benchmarks/history/.",
)
def main(version: str, results: tuple[Path, ...], folder: Path) -> None:
    """Keeps the RESULTS of a release VERSION, and draws all versions.

    RESULTS are the results.json of `make bench`, whose rounds count together. To add rounds to those of
    a release, give its file in the folder as well.
    """
    if not _is_version(version):
        raise click.BadParameter(f"{version!r} is not a version; give it as 1.2.3, or 1.2.3rc1")
    rounds, conditions = read_rounds(results)
    text = report_of(rounds, list(CONTENDERS), {"runs": conditions}).json()
    if not ratios(json.loads(text)):
        raise click.ClickException(
            "there is no ratio to the original: measure `real` and `ours` in one run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{version}.json").write_text(text, encoding="utf-8")
    draw(read(folder), folder / PLOT)
    click.echo(f"written: {folder / f'{version}.json'}, {folder / PLOT}")


def _is_version(text: str) -> bool:
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


if __name__ == "__main__":
    main()
