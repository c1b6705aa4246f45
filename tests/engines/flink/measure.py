"""`python -m tests.engines.flink.measure`: where a Flink cluster begins to pay, on this machine.

Runs StatisticsGen for the taxi rides, once, ten and a hundred times over, under the DirectRunner and on Flink with one
and two task slots, and prints seconds, processor seconds and peak memory as a table of docs/beam.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import psutil

from tests.engines import jars
from tests.engines.flink.cluster import FlinkCluster
from tfx_tpu_trainer.runner.local_runner import child_environment

ROWS = 15_002
DIRECT = (
    "--runner=DirectRunner",
    "--direct_running_mode=in_memory",
    "--sdk_container_image=of-this-process",
)
_HEAD = "| rows | runner | seconds | processor seconds | peak memory |\n|---:|---|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "examples", type=pathlib.Path, help="a CsvExampleGen's output, of 15,002 rides"
    )
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--slots", type=int, nargs="*", default=[0, 1, 2], help="0: DirectRunner")
    words = parser.parse_args()
    print(_HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for times in words.times:
            examples = pathlib.Path(folder) / f"examples-{times}"
            _repeat(words.examples, examples, times)
            for slots in words.slots:
                _measure(examples, slots=slots, times=times)


def _repeat(source: pathlib.Path, target: pathlib.Path, times: int) -> None:
    for split in source.glob("Split-*"):
        (target / split.name).mkdir(parents=True)
        (file,) = split.glob("*.gz")
        for index in range(times):
            name = f"data_tfrecord-{index:05d}-of-{times:05d}.gz"
            shutil.copy(file, target / split.name / name)


def _measure(examples: pathlib.Path, *, slots: int, times: int) -> None:
    """Runs the component once in a process of its own, with a fresh cluster, and prints a row."""
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = pathlib.Path(made)
        arguments: Sequence[str] = DIRECT
        if slots:
            pom = pathlib.Path(__file__).with_name("pom.xml")
            cluster = FlinkCluster(folder / "cluster", jars.fetch(pom))
            stack.enter_context(cluster)
            cluster.start_all()
            arguments = cluster.arguments(parallelism=slots)
        used: dict[int, float] = _processor_seconds()
        before, started = dict(used), time.monotonic()
        peak = 0
        with (folder / "log.txt").open("wb") as log:
            program = [sys.executable, "-m", "tests.engines.flink.run_statistics", str(examples)]
            process = subprocess.Popen(
                [*program, str(folder), json.dumps(arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
            )
            while process.poll() is None:
                used.update(_processor_seconds())
                peak = max(peak, _memory())
                time.sleep(0.5)
        seconds = time.monotonic() - started
        if process.returncode:
            sys.exit((folder / "log.txt").read_text("utf-8", errors="replace")[-3000:])
    processor = sum(last - before.get(pid, 0.0) for pid, last in used.items())
    runner = f"Flink, {slots} slot{'s' if slots > 1 else ''}" if slots else "DirectRunner"
    row = (f"{ROWS * times:,}", runner, f"{seconds:.0f}", f"{processor:.0f}", f"{peak >> 20:,} MiB")
    print(f"| {' | '.join(row)} |", flush=True)


def _processor_seconds() -> dict[int, float]:
    """Processor seconds of each process of this one's, so far."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _memory() -> int:
    found = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += process.memory_info().rss
    return found


if __name__ == "__main__":
    main()
