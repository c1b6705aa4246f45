"""How what is asked of an estimator costs more as it gets larger: `make growth`.

Each point has a process of its own (`growth_points`). What counts is the time of the processors, which other work
on the machine changes least; the wall clock is in the results too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from rich.console import Console
from rich.table import Table

from benchmarks.growth_fit import Growth, growth_of
from benchmarks.processes import Failed, environment_of, result_of

# No display is needed, nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

MEMORY = "peak memory"
FASTER = "faster than linear"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """What gets larger.

    Attributes:
        unit: One of what is counted.
        sizes: How many are measured.
        clock: The time that counts, `"cpu"` or `"wall"`.
    """

    unit: str
    sizes: tuple[int, ...]
    clock: str = "cpu"


AXES = {
    "rows": Axis(unit="row evaluated", sizes=(10_240, 102_400, 1_024_000, 10_240_000)),
    "variables": Axis(unit="variable", sizes=(10, 100, 1_000, 10_000)),
    "layers": Axis(unit="layer", sizes=(3, 10, 30, 100, 300)),
    "cores": Axis(unit="core", sizes=(1, 4, 16, 64)),
    "slices": Axis(unit="slice", sizes=(0, 10, 50, 200)),
    "predictions": Axis(unit="row predicted", sizes=(10_240, 102_400, 1_024_000, 5_120_000)),
    "checkpoint": Axis(unit="MiB", sizes=(64, 256, 1_024, 4_096), clock="wall"),
    "hosts": Axis(unit="process", sizes=(1, 2, 3, 4)),
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """A number at one size beside another.

    Attributes:
        axis: The axis.
        over: Call and size of the number that is divided.
        under: Those of the number to divide by.
        most: How large the ratio may be.
    """

    axis: str
    over: tuple[str, int]
    under: tuple[str, int]
    most: float

    def describe(self) -> str:
        (call, size), (other, other_size) = self.over, self.under
        return f"{self.axis}: {call} at {size:,} / {other} at {other_size:,} <= {self.most:g}"


BOUNDS = (
    Bound("rows", (MEMORY, 10_240_000), (MEMORY, 10_240), 1.05),
    Bound("predictions", (MEMORY, 5_120_000), (MEMORY, 10_240), 1.05),
    Bound("slices", ("evaluate", 50), ("evaluate", 0), 1.5),
    Bound("checkpoint", ("save", 4_096), ("write", 4_096), 1.2),
)

Costs = dict[str, dict[str, dict[int, list[float]]]]
"""By axis, call and size: the cost in each round."""


def measure(axis: str, size: int, *, threads: int, timeout: float) -> dict[str, Any]:
    """Measures a point in a separate process."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        found = result_of(
            ["benchmarks.growth_points", axis, str(size), folder],
            environment=environment_of(threads=threads, legacy_keras=True),
            timeout=timeout,
        )
    return {"reason": found.reason} if isinstance(found, Failed) else json.loads(found)


def costs_of(points: Sequence[Mapping[str, Any]]) -> Costs:
    """Sorts points into costs: seconds of the axis's clock, and MiB."""
    costs: Costs = {}
    for point in points:
        if "reason" in point:
            continue
        axis, size = point["axis"], point["size"]
        clock = AXES[axis].clock
        found = {call: seconds[clock] for call, seconds in point["calls"].items()}
        for call, cost in {**found, MEMORY: point["memory"]}.items():
            costs.setdefault(axis, {}).setdefault(call, {}).setdefault(size, []).append(cost)
    return costs


def growths_of(costs: Costs) -> dict[tuple[str, str], Growth]:
    """Finds how each call's cost grows, where there are sizes enough to tell."""
    return {
        (axis, call): growth_of(by_size)
        for axis, calls in costs.items()
        for call, by_size in calls.items()
        if len(by_size) >= 3
    }


def ratio_of(bound: Bound, costs: Costs) -> float:
    """Returns what a bound is about, NaN where it was not measured."""
    calls = costs.get(bound.axis, {})
    over, under = (calls.get(call, {}).get(size) for call, size in (bound.over, bound.under))
    return statistics.median(over) / statistics.median(under) if over and under else math.nan


def tables(costs: Costs, growths: Mapping[tuple[str, str], Growth]) -> list[Table]:
    """Returns the exponents and the bounds, to be printed."""
    table = Table(title="How cost grows", title_justify="left")
    for heading in ("", "call", "sizes", "cost", "exponent", "one more", ""):
        table.add_column(heading)
    for axis, calls in costs.items():
        for call, by_size in calls.items():
            smallest, *_, largest = sorted(by_size)
            unit = "MiB" if call == MEMORY else "s"
            ends = [statistics.median(by_size[size]) for size in (smallest, largest)]
            growth = growths.get((axis, call))
            table.add_row(
                axis,
                call,
                f"{smallest:,} to {largest:,}",
                f"{ends[0]:,.3g} to {ends[1]:,.3g} {unit}",
                _exponent_text(growth) if growth else "-",
                _one_more(growth.each, unit, AXES[axis].unit) if growth else "-",
                growth.verdict if growth else "too few sizes",
            )
    found = Table(title="Bounds", title_justify="left")
    for heading in ("bound", "found", ""):
        found.add_column(heading)
    for bound in BOUNDS:
        ratio = ratio_of(bound, costs)
        if not math.isnan(ratio):
            verdict = "reached" if ratio <= bound.most else "missed"
            found.add_row(bound.describe(), f"{ratio:.2f}", verdict)
    return [table, found] if found.row_count else [table]


def draw(costs: Costs, growths: Mapping[tuple[str, str], Growth], path: Path) -> None:
    """Draws each axis, its calls by the logarithms of size and cost."""
    columns = min(4, len(costs))
    lines = -(-len(costs) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(4.4 * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axes in grid.flat[len(costs) :]:
        axes.set_axis_off()
    for axes, (axis, calls) in zip(grid.flat, costs.items()):
        for call, by_size in calls.items():
            if call == MEMORY:
                continue
            known = {size: statistics.median(by_size[size]) for size in sorted(by_size) if size}
            growth = growths.get((axis, call))
            label = f"{call}, {growth.exponent:.2f}" if growth else call
            axes.loglog(list(known), list(known.values()), marker="o", markersize=3, label=label)
        axes.set_title(axis, fontsize=9)
        axes.set_ylabel(f"seconds ({AXES[axis].clock})", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, title="call, exponent", title_fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _exponent_text(growth: Growth) -> str:
    known = not math.isnan(growth.low)
    between = f"{growth.low:.2f}-{growth.high:.2f}" if known else "one round"
    return f"{growth.exponent:.2f} ({between})"


def _one_more(seconds: float, unit: str, of: str) -> str:
    scales = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")) if unit == "s" else ((1, unit),)
    for scale, name in scales:
        if abs(seconds) >= scale or scale == scales[-1][0]:
            return f"{seconds / scale:,.3g} {name} a {of}"
    raise AssertionError(seconds)


def _sizes(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(text.split(",")) if text else tuple(AXES)
    for name in names:
        if name not in AXES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(AXES)}")
    return names


@click.command()
@click.option("--axes", default="", callback=_sizes, help=f"Of {', '.join(AXES)}.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--largest",
    type=click.IntRange(min=1),
    help="Largest size to measure. Defaults to all sizes.",
)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--timeout",
    type=click.IntRange(1, 86_400),
    default=3600,
    show_default=True,
    help="Seconds that one process may take.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the results. Defaults to runs/growth/ and the time.",
)
def main(
    axes: Sequence[str],
    rounds: int,
    largest: int | None,
    threads: int,
    timeout: float,
    output: Path | None,
) -> None:
    """Measures how cost grows with rows, variables, layers, cores, slices, predictions, bytes and hosts."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    output = output or Path("runs/growth") / time.strftime("%Y%m%d-%H%M%S")
    output.mkdir(parents=True, exist_ok=True)
    points = []
    for number in range(rounds):
        for axis in axes:
            for size in AXES[axis].sizes:
                if largest is None or size <= largest:
                    found = measure(axis, size, threads=threads, timeout=timeout)
                    points.append({"axis": axis, "size": size, "round": number, **found})
                    told = found.get("reason") or ", ".join(
                        f"{call} {seconds['cpu']:.2f} s" for call, seconds in found["calls"].items()
                    )
                    console.print(f"{axis} {size:,}: {told}", highlight=False, markup=False)
                    (output / "results.json").write_text(json.dumps(points, indent=1) + "\n")
    costs = costs_of(points)
    growths = growths_of(costs)
    for table in tables(costs, growths):
        console.print(table)
    if costs:
        draw(costs, growths, output / "plot.png")
    console.print(f"written: {output}/ (results.json, plot.png)", highlight=False)
    faster = [f"{call} of {axis}" for (axis, call), g in growths.items() if g.verdict == FASTER]
    failed = [f"{p['axis']} {p['size']:,}: {p['reason']}" for p in points if "reason" in p]
    if failed:
        raise click.ClickException(f"failed: {'; '.join(failed)}")
    if faster:
        raise click.ClickException(f"grow faster than linear: {', '.join(faster)}")


if __name__ == "__main__":
    main()
