"""`make waiting`: times what a person waits for at a prompt, each command beside the plain import of what it needs.

Runs the taxi pipeline twice, and then every command and its import in turns. Prints a table of medians over the rounds:
seconds on the clock, seconds of processor time, and what the command takes beyond its import, as a share of
TensorFlow's import, so that slow and fast machines have the same target.
"""

import dataclasses
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.newcomer import timed
from benchmarks.processes import REPOSITORY

COMMAND = (sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main")
IMPORTS = {"nothing": "pass", "TensorFlow": "import tensorflow", "TFX": "from tfx import v1"}
# 1.5 s on the machine of the speed page, where TensorFlow's import takes 2.15 s.
SHARE_OF_TENSORFLOW, SHARE_OF_TFX = 0.7, 1.15
COLUMNS = ("command", "seconds", "processor", "import of", "seconds", "processor", "target")


@dataclasses.dataclass(frozen=True)
class Waited:
    """A command and its import, measured in turns: on the clock and in processor time, in seconds."""

    name: str
    needs: str
    command: Sequence[tuple[float, float]]
    imported: Sequence[tuple[float, float]]
    # Processor seconds of TensorFlow's import.
    tensorflow: float

    @property
    def target(self) -> str:
        """The target and what was measured of it, in processor time: other work on the machine hardly changes that."""
        pairs = [(command[1], plain[1]) for command, plain in zip(self.command, self.imported)]
        if self.needs == "TFX":
            share = statistics.median(command / plain for command, plain in pairs)
            return f"{share:.2f} of at most {SHARE_OF_TFX} times"
        beyond = statistics.median(command - plain for command, plain in pairs)
        return f"{beyond / self.tensorflow:.2f} of at most {SHARE_OF_TENSORFLOW} more"

    def row(self) -> str:
        """Returns a row of the table."""
        command, plain = (
            [f"{statistics.median(part):.2f}" for part in zip(*took)]
            for took in (self.command, self.imported)
        )
        return f"| {' | '.join([f'`{self.name}`', *command, self.needs, *plain, self.target])} |"


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
def main(rounds: int) -> None:
    """Times what a person waits for at a prompt."""
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="waiting-") as folder:
        root = Path(folder)
        taxi = ("--pipeline", "taxi", "--root", str(root))
        _, *demo = timed((*COMMAND, "run", *taxi), REPOSITORY, environment)
        # The gate judges once more: it has a baseline now.
        timed((*COMMAND, "run", *taxi), REPOSITORY, environment)
        (model, *_) = sorted(map(str, root.glob("serving/*")))
        commands = {
            "--help": ("nothing", ("--help",)),
            "new --help": ("nothing", ("new", "--help")),
            "history": ("nothing", ("history", "--root", str(root))),
            "show": ("nothing", ("show", "--root", str(root))),
            "compare": ("nothing", ("compare", *taxi)),
            "doctor": ("nothing", ("doctor", "pipelines/taxi")),
            "inspect": ("TensorFlow", ("inspect", model)),
            "report": ("TensorFlow", ("report", *taxi)),
            "run, all nodes cached": ("TFX", ("run", *taxi)),
        }
        importing = {name: (sys.executable, "-c", statement) for name, statement in IMPORTS.items()}
        tensorflow = statistics.median(
            timed(importing["TensorFlow"], REPOSITORY, environment)[2] for _ in range(rounds)
        )
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for name, (needs, words) in commands.items():
            # The first round fills the disk's cache.
            took = [
                [
                    timed(each, REPOSITORY, environment)[1:]
                    for each in ((*COMMAND, *words), importing[needs])
                ]
                for _ in range(rounds + 1)
            ][1:]
            command, imported = zip(*took)
            print(Waited(name, needs, command, imported, tensorflow).row(), flush=True)
        print(f"\n`make demo`: {demo[0]:.0f} s, {demo[1]:.0f} s of processor time.")
        print(f"TensorFlow's import: {tensorflow:.2f} s of processor time.")
        print(f"{rounds} rounds, {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
