"""`python -m benchmarks.history VERSION RESULTS ...`: keeps what a release was measured at, and draws all of them.

What is kept are the ratios to the original of the same run: numbers of different machines and days can't be
compared, ratios can.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl

from benchmarks.plan import TITLES
from benchmarks.summary import METRICS

# No display is needed, nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent / "history"
PLOT = "plot.png"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def kept(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is kept of a `results.json`: its conditions, and the ratios of ours.

    Args:
        results: The file's content.

    Returns:
        `conditions` by model, and `ratios` by model, contender and metric: value, low and high.

    Raises:
        ValueError: If there is no ratio in it.
    """
    ratios: dict[str, dict[str, Any]] = {}
    for model, rows in results["summaries"].items():
        for row in rows:
            of_row = {
                field: cell["ratio"]
                for field, cell in row["cells"].items()
                if cell["ratio"]["value"] is not None
            }
            if of_row and row["contender"].startswith("ours"):
                ratios.setdefault(model, {})[row["contender"]] = of_row
    if not ratios:
        raise ValueError("it has no ratio to the original: measure `real` and `ours` in one run")
    return {"conditions": dict.fromkeys(ratios, results["conditions"]), "ratios": ratios}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads what was kept, by version, the oldest first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: [int(n) for n in path.stem.split(".")])
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def draw(history: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draws the ratios over the versions: a row for each model, a column for each metric.

    Args:
        history: What `read` returns.
        path: The PNG file to write.
    """
    versions = list(history)
    models = [m for m in TITLES if any(m in each["ratios"] for each in history.values())]
    figure, grid = plt.subplots(
        len(models),
        len(METRICS),
        figsize=(3.2 * len(METRICS), 2.4 * len(models)),
        squeeze=False,
        layout="constrained",
    )
    for line, model in zip(grid, models):
        of_model = [each["ratios"].get(model, {}) for each in history.values()]
        for axes, metric in zip(line, METRICS):
            for name in dict.fromkeys(name for each in of_model for name in each):
                ratios = [each.get(name, {}).get(metric.field, {}) for each in of_model]
                values = [ratio.get("value", math.nan) for ratio in ratios]
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


RESULTS = click.argument(
    "results",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    nargs=-1,
    required=True,
)
"""The argument of a command that reads one results.json or several."""


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

    RESULTS are the results.json of `make bench`, or of several runs with a model each.
    """
    if not _VERSION.fullmatch(version):
        raise click.BadParameter(f"{version!r} is not a version; give it as 1.2.3")
    found: dict[str, dict[str, Any]] = {"conditions": {}, "ratios": {}}
    for path in results:
        try:
            of_run = kept(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise click.ClickException(
                f"{path} is not a results.json of make bench: {error}"
            ) from None
        if twice := found["ratios"].keys() & of_run["ratios"].keys():
            raise click.ClickException(
                f"{path} has a model of another file ({', '.join(sorted(twice))}); give one run of each"
            )
        for key, of_models in of_run.items():
            found[key].update(of_models)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1) + "\n"
    (folder / f"{version}.json").write_text(text, encoding="utf-8")
    draw(read(folder), folder / PLOT)
    click.echo(f"written: {folder / f'{version}.json'}, {folder / PLOT}")


if __name__ == "__main__":
    main()
