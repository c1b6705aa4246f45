"""Measures how the cost of estimator calls grows with their size: `make growth`.

Each point runs in its own process (`growth_points`); an axis's points give the exponent of the cost's growth. Processor
time decides, since other work on the machine affects it least; the results also have the wall clock.
"""

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
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.processes import Failed, environment_of, result_of

# A display is neither needed nor looked for.
mpl.use("Agg")

from matplotlib import pyplot as plt

MEMORY = "peak memory"
FASTER = "faster than linear"
LIMIT = 1.1
"""The exponent above which growth is faster than linear; sorting's n log n is below it."""

# Growth below this fraction of the largest size's cost may be noise.
_FLAT = 0.1
_EXPONENTS = np.arange(0.05, 3.001, 0.01)
_RESAMPLES = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """A size that grows."""

    # The name of a counted unit.
    unit: str
    sizes: tuple[int, ...]
    # The deciding time, `"cpu"` or `"wall"`.
    clock: str = "cpu"


AXES = {
    "rows": Axis(unit="row evaluated", sizes=(10_240, 102_400, 1_024_000, 10_240_000)),
    "variables": Axis(unit="variable", sizes=(10, 100, 1_000, 10_000)),
    "layers": Axis(unit="layer", sizes=(3, 10, 30, 100, 300)),
    "cores": Axis(unit="core", sizes=(1, 4, 16, 64)),
    "slices": Axis(unit="slice", sizes=(0, 10, 50, 200, 1_000)),
    "predictions": Axis(unit="row predicted", sizes=(10_240, 102_400, 1_024_000, 5_120_000)),
    "checkpoint": Axis(unit="MiB", sizes=(64, 256, 1_024, 4_096), clock="wall"),
    "input": Axis(unit="MiB", sizes=(1_280, 5_120, 20_480), clock="wall"),
    "hosts": Axis(unit="process", sizes=(1, 2, 3, 4)),
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """The ratio of two measured numbers, with its limit."""

    axis: str
    # Call and size of the numerator, and of the denominator.
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
    Bound("input", ("evaluate", 20_480), ("tf.data", 20_480), 1.1),
    Bound("input", (MEMORY, 20_480), (MEMORY, 1_280), 1.05),
    Bound("checkpoint", ("save", 4_096), ("write", 4_096), 1.2),
)


@dataclasses.dataclass(frozen=True)
class Growth:
    """A cost's growth with a size: `fixed + c * size ** exponent`."""

    # The slope of the variable cost on logarithmic axes; 0 if it is flat.
    exponent: float
    # The ends of its 95 % interval, by bootstrap over the rounds; NaN for a single round.
    low: float
    high: float
    # The cost of one more unit, between the smallest and the largest size.
    each: float

    @property
    def verdict(self) -> str:
        """`flat`, `linear or less`, or `faster than linear` if the whole interval is above `LIMIT`.

        One round has no interval: a value above the limit is `open`.
        """
        if self.exponent == 0:
            return "flat"
        if math.isnan(self.low) and self.exponent > LIMIT:
            return "open"
        return "faster than linear" if self.low > LIMIT else "linear or less"


def growth_of(costs: Mapping[int, Sequence[float]]) -> Growth:
    """Fits a cost's growth."""
    sizes = np.array(sorted(costs), float)
    if len(sizes) < 3:
        raise ValueError(
            f"an exponent needs three sizes, got {sorted(costs)}: measure more of them"
        )
    rounds = [np.array(costs[int(size)], float) for size in sizes]
    medians = np.array([np.median(values) for values in rounds])
    low = high = math.nan
    if min(map(len, rounds)) > 1:
        generator = np.random.default_rng(1)
        found = [
            _exponent(sizes, np.array([np.median(generator.choice(v, len(v))) for v in rounds]))
            for _ in range(_RESAMPLES)
        ]
        low, high = np.percentile(found, [2.5, 97.5])
    each = (medians[-1] - medians[0]) / (sizes[-1] - sizes[0])
    return Growth(_exponent(sizes, medians), float(low), float(high), float(each))


def _exponent(sizes: np.ndarray, costs: np.ndarray) -> float:
    """Returns the exponent with the smallest relative errors; neither part may be negative."""
    if costs[-1] - costs[0] < _FLAT * costs[-1]:
        return 0.0
    # For each exponent, the best `fixed` and `c` by least squares of fixed/cost + c*power/cost - 1.
    powers = (sizes / sizes[-1]) ** _EXPONENTS[:, np.newaxis]
    ones, grown = np.broadcast_to(1 / costs, powers.shape), powers / costs
    a, b, d = (ones * ones).sum(1), (ones * grown).sum(1), (grown * grown).sum(1)
    p, q = ones.sum(1), grown.sum(1)
    determinant = np.maximum(a * d - b * b, 1e-300)
    fixed, factor = (p * d - q * b) / determinant, (a * q - b * p) / determinant
    alone = (fixed < 0) | (factor < 0)
    fixed, factor = np.where(alone, 0.0, fixed), np.where(alone, q / d, factor)
    errors = (fixed[:, None] * ones + factor[:, None] * grown - 1) ** 2
    return float(_EXPONENTS[errors.sum(1).argmin()])


Costs = dict[str, dict[str, dict[int, list[float]]]]
"""By axis, call and size: the cost in each round."""


def measure(axis: str, size: int, *, threads: int, timeout: float) -> dict[str, Any]:
    """Measures a point in its own process."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        found = result_of(
            ["benchmarks.growth_points", axis, str(size), folder],
            environment=environment_of(threads=threads, legacy_keras=True),
            timeout=timeout,
        )
    return {"reason": found.reason} if isinstance(found, Failed) else json.loads(found)


def costs_of(points: Sequence[Mapping[str, Any]]) -> Costs:
    """Collects the points' costs: seconds of the axis's clock, and MiB."""
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
    """Fits each call's growth if there are enough sizes."""
    return {
        (axis, call): growth_of(by_size)
        for axis, calls in costs.items()
        for call, by_size in calls.items()
        if len(by_size) >= 3
    }


def ratio_of(bound: Bound, costs: Costs) -> float:
    """Returns a bound's ratio; NaN if it was not measured."""
    calls = costs.get(bound.axis, {})
    over, under = (calls.get(call, {}).get(size) for call, size in (bound.over, bound.under))
    return statistics.median(over) / statistics.median(under) if over and under else math.nan


def tables(costs: Costs, growths: Mapping[tuple[str, str], Growth]) -> list[Table]:
    """Returns tables of the exponents and the bounds."""
    headings = ("", "call", "sizes", "cost", "exponent", "one more", "")
    table = Table(*headings, title="How cost grows", title_justify="left")
    for axis, calls in costs.items():
        for call, by_size in calls.items():
            smallest, largest = min(by_size), max(by_size)
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
    found = Table("bound", "found", "", title="Bounds", title_justify="left")
    for bound in BOUNDS:
        ratio = ratio_of(bound, costs)
        if not math.isnan(ratio):
            verdict = "reached" if ratio <= bound.most else "missed"
            found.add_row(bound.describe(), f"{ratio:.2f}", verdict)
    return [table, found] if found.row_count else [table]


def draw(costs: Costs, growths: Mapping[tuple[str, str], Growth], path: Path) -> None:
    """Draws each axis: its calls' costs over size, on logarithmic axes."""
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
    """Measures how the cost of calls grows with each size."""
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
