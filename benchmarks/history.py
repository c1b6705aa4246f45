"""`python -m benchmarks.history VERSION RESULTS ...`: stores the measurements of a release, and draws all of them.

It stores the rounds, compressed, and draws the ratios to the original in the same round: numbers of different machines
and days can't be compared, ratios can.
"""

import gzip
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import matplotlib as mpl
from packaging.version import InvalidVersion, Version

from benchmarks.contenders import BASELINE, CONTENDERS
from benchmarks.plan import TITLES
from benchmarks.report import RESULTS, read_rounds, runs_of
from benchmarks.rounds import Round
from benchmarks.summary import METRICS, ratios

# A display is neither needed nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

FOLDER = Path(__file__).parent / "history"
SUFFIX = ".json.gz"
PLOT = "plot.png"

Ratios = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By model, contender and the field of a metric: the median ratio of ours to the original."""


def read(folder: Path) -> dict[str, dict[str, list[Round]]]:
    """Reads each version's rounds by model, the oldest version first."""
    names = [path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")]
    return {
        name: read_rounds([folder / f"{name}{SUFFIX}"])[0] for name in sorted(names, key=Version)
    }


def ratios_of(made: Mapping[str, Sequence[Round]]) -> Ratios:
    """Returns the ratios of rounds, if there are any."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model, rounds in made.items():
        failed = {name for each in rounds for name in each.failures}
        for name in (each for each in CONTENDERS if each.startswith("ours") and each not in failed):
            for metric in METRICS:
                if values := ratios(rounds, metric.field, name, [BASELINE]):
                    of_model = found.setdefault(model, {})
                    of_model.setdefault(name, {})[metric.field] = statistics.median(values)
    return found


def draw(history: Mapping[str, Ratios], path: Path) -> None:
    """Draws the ratios over the versions: a row for each model, a column for each metric."""
    versions, drawn = list(history), list(history.values())
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
                values = [each.get(name, {}).get(metric.field, math.nan) for each in of_model]
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
    """Stores the RESULTS of a release VERSION, and draws all versions.

    RESULTS are the results.json files of `make bench`, whose rounds count together. To add rounds to those of a
    release, give its file in the folder as well.
    """
    if not _is_version(version):
        raise click.BadParameter(f"{version!r} is not a version; give it as 1.2.3, or 1.2.3rc1")
    rounds, conditions = read_rounds(results)
    if not ratios_of(rounds):
        raise click.ClickException(
            "there is no ratio to the original: measure `real` and `ours` in one run"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{version}{SUFFIX}"
    kept = {"conditions": {"runs": conditions}, "runs": runs_of(rounds)}
    # Without a timestamp, the same rounds give the same bytes.
    path.write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))
    draw({name: ratios_of(made) for name, made in read(folder).items()}, folder / PLOT)
    click.echo(f"written: {path}, {folder / PLOT}")


def _is_version(text: str) -> bool:
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


if __name__ == "__main__":
    main()
