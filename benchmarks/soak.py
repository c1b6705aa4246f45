"""Checks that a process that trains for weeks does not grow: `make soak`.

Each placement has its own process, which makes the rounds of `soak_rounds` and reads its memory, threads and file
descriptors after each, as the system shows them for any process: nothing is collected or released for the reading, and
each round has a new folder. None of them may grow once the process is warm.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from benchmarks.processes import REPOSITORY, environment_of

PLACEMENTS = ("host", "cores", "strategy")
UNITS = {"memory": " MiB", "threads": "", "descriptors": ""}
"""The measured quantities after each round, and their units."""

ROUNDS = 300
WARM_UP = 30
"""Rounds after which nothing may grow: allocators and caches are warm by then."""

TOLERANCE = 0.05
"""The memory that glibc keeps still grows after the warm-up: the host's process takes 3 % more around round
120, in one step, and stays there to round 300. A leak keeps growing: 1 MiB per round would be a third by then."""

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


@dataclasses.dataclass(frozen=True)
class Curve:
    """The readings of one quantity, round by round."""

    name: str
    values: Sequence[float]
    warm_up: int = WARM_UP

    @property
    def begin(self) -> float:
        """The median of the first fifth after the warm-up."""
        return statistics.median(self._warm[: self._part])

    @property
    def end(self) -> float:
        """The median of the last fifth."""
        return statistics.median(self._warm[-self._part :])

    @property
    def growth(self) -> float:
        """The growth from beginning to end, relative to the beginning."""
        return self.end / self.begin - 1

    @property
    def is_flat(self) -> bool:
        return self.growth <= TOLERANCE

    def line(self) -> str:
        """Draws the curve in one line, from its lowest to its highest reading."""
        low, high = min(self.values), max(self.values)
        parts = np.array_split(self.values, min(_WIDTH, len(self.values)))
        shown = [np.median(part) for part in parts]
        bars = "".join(
            _BARS[round((value - low) / (high - low or 1) * (len(_BARS) - 1))] for value in shown
        )
        unit = UNITS[self.name]
        return (
            f"{self.name:12} {bars} {self.begin:,.0f}{unit} to {self.end:,.0f}{unit}"
            f" ({self.growth:+.1%})"
        )

    @property
    def _warm(self) -> Sequence[float]:
        return self.values[self.warm_up :]

    @property
    def _part(self) -> int:
        return max(1, len(self._warm) // 5)


def curves_of(lines: Path, *, warm_up: int = WARM_UP) -> list[Curve]:
    """Reads the curves from a process's output lines."""
    rounds = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    return [Curve(name, [made[name] for made in rounds], warm_up) for name in UNITS]


def make_rounds(placement: str, rounds: int, output: Path) -> None:
    """Makes rounds in a new process."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.soak_rounds",
                placement,
                str(rounds),
                folder,
                output,
            ],
            cwd=REPOSITORY,
            env=environment_of(threads=2, legacy_keras=True),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


@click.command()
@click.option("--rounds", type=click.IntRange(min=WARM_UP + 5), default=ROUNDS, show_default=True)
@click.option(
    "--placements",
    default=",".join(PLACEMENTS),
    show_default=True,
    callback=lambda context, parameter, text: _placements(text),
    help="Placements to test, separated by commas.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the readings. Defaults to runs/soak/ and the time.",
)
def main(rounds: int, placements: Sequence[str], output: Path | None) -> None:
    """Makes rounds of train, evaluate, predict and export, and shows which readings grow."""
    output = output or Path("runs/soak") / time.strftime("%Y%m%d-%H%M%S")
    output.mkdir(parents=True, exist_ok=True)
    grown = []
    for placement in placements:
        began, lines = time.monotonic(), output / f"{placement}.jsonl"
        try:
            make_rounds(placement, rounds, lines)
        except subprocess.CalledProcessError as error:
            sys.exit(
                f"{placement}: the rounds failed with exit code {error.returncode}:\n{error.stderr[-3000:]}"
            )
        click.echo(f"{placement}: {rounds} rounds in {time.monotonic() - began:.0f} s")
        for curve in curves_of(lines):
            click.echo(f"  {curve.line()}")
            if not curve.is_flat:
                grown.append(f"{curve.name} on {placement} ({curve.growth:+.1%})")
    click.echo(f"written: {output}/")
    if grown:
        sys.exit(f"grew by more than {TOLERANCE:.0%} after round {WARM_UP}: {', '.join(grown)}")


def _placements(text: str) -> Sequence[str]:
    names = text.split(",")
    for name in names:
        if name not in PLACEMENTS:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(PLACEMENTS)}")
    return names


if __name__ == "__main__":
    main()
