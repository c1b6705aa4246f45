"""`python -m benchmarks.newcomer`: times the way from the README to a TPUEstimator on eight emulated cores.

Builds the wheel, then takes a newcomer's steps in an empty folder: makes a virtual environment, installs the wheel with
pip, as from an index, pastes the README's first program and runs it twice. Prints a table of the commands with their
seconds. pip downloads the packages, or takes them from its cache.
"""

import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from scripts.build_dist import build
from tests.listings import README, blocks_of, listings_of

COLUMNS = ("command", "seconds", "processor seconds")


@click.command()
@click.option("--python", default=sys.executable, show_default=True, help="The newcomer's Python.")
def main(python: str) -> None:
    """Times a newcomer's first commands."""
    # Nothing in this environment may help.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TF_", "CUDA_", "VIRTUAL_ENV"))
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(folder / "dist")
        (folder / "first.py").write_text(listings_of(README)[0], encoding="utf-8")
        (expected,) = blocks_of(README, "text")
        steps = (
            ("python -m venv env", (python, "-m", "venv", "env")),
            (
                "env/bin/pip install tfx-tpu-trainer",
                ("env/bin/pip", "install", "--quiet", str(wheel)),
            ),
            ("env/bin/python first.py", ("env/bin/python", "first.py")),
            ("env/bin/python first.py, again", ("env/bin/python", "first.py")),
        )
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        totals = [0.0, 0.0]
        for name, command in steps:
            printed, *took = timed(command, folder, environment)
            if command[-1] == "first.py" and printed != expected:
                sys.exit(f"{name} printed {printed!r}; the README says {expected!r}")
            if not name.endswith("again"):
                totals = [total + part for total, part in zip(totals, took)]
            print(row(f"`{name}`", took))
        print(row("to the trained model", totals))
        print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores.")


def timed(
    command: Sequence[str], folder: Path, environment: dict[str, str]
) -> tuple[str, float, float]:
    """Runs a command and measures it."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {ended.returncode}\n{ended.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ended.stdout, seconds, processor


def row(name: str, seconds: Sequence[float]) -> str:
    """Returns a row of the table."""
    return f"| {name} | {' | '.join(f'{part:.1f}' for part in seconds)} |"


if __name__ == "__main__":
    main()
