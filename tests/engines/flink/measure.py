"""`python -m tests.engines.flink.measure RUN`: where a Flink cluster begins to pay, on this machine.

Takes a component's inputs from a local run of the taxi pipeline, repeats its rides ten or a hundred times, runs the
component under the DirectRunner and on Flink with one and two task slots, and prints seconds, processor seconds and
peak memory as a table of docs/beam.md.
"""

import argparse
import contextlib
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import psutil

from tests.engines import java_server
from tests.engines.flink.cluster import FlinkCluster
from tfx_tpu_trainer.workbench.run.local_runner import child_environment

ROWS = 15_002
DIRECT = (
    "--runner=DirectRunner",
    "--direct_running_mode=in_memory",
    "--sdk_container_image=of-this-process",
)
# The producer of each input, of every component that is measured.
INPUTS = {
    "StatisticsGen": {"examples": "CsvExampleGen"},
    "Transform": {"examples": "CsvExampleGen", "schema": "SchemaGen"},
    "Evaluator": {"examples": "CsvExampleGen", "schema": "SchemaGen", "model": "TpuTrainer"},
}
_COLUMNS = ("component", "rows", "runner", "seconds", "processor seconds", "peak memory")
_HEAD = f"| {' | '.join(_COLUMNS)} |\n|---|---:|---|---:|---:|---:|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "run", type=pathlib.Path, help="root of a run of the taxi pipeline, with 15,002 rides"
    )
    parser.add_argument("--components", nargs="+", default=list(INPUTS), choices=list(INPUTS))
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--slots", type=int, nargs="*", default=[0, 1, 2], help="0: DirectRunner")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="a run that takes longer is ended"
    )
    # Transform of 1.5 million rows fills the 400 MiB that tests have.
    parser.add_argument("--heap_mib", type=int, default=1600, help="of each TaskManager's tasks")
    words = parser.parse_args()
    print(_HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for times in words.times:
            examples = pathlib.Path(folder) / f"examples-{times}"
            _repeat(_output(words.run, "CsvExampleGen", "examples"), examples, times)
            for name in words.components:
                inputs = {
                    key: _output(words.run, producer, key) for key, producer in INPUTS[name].items()
                }
                for slots in words.slots:
                    given = {**inputs, "examples": examples}
                    _measure(
                        name,
                        given,
                        slots=slots,
                        times=times,
                        minutes=words.minutes,
                        heap_mib=words.heap_mib,
                    )


def _output(run: pathlib.Path, component: str, key: str) -> pathlib.Path:
    """The newest output of a component: each run has a folder with its number."""
    found = [path for path in run.glob(f"**/{component}/{key}/*") if path.name.isdigit()]
    if not found:
        sys.exit(f"{run} has no {key} of {component}: give the root of a run of the taxi pipeline")
    return max(found, key=lambda path: int(path.name))


def _repeat(source: pathlib.Path, target: pathlib.Path, times: int) -> None:
    for split in source.glob("Split-*"):
        (target / split.name).mkdir(parents=True)
        (file,) = split.glob("*.gz")
        for index in range(times):
            name = f"data_tfrecord-{index:05d}-of-{times:05d}.gz"
            shutil.copy(file, target / split.name / name)


def _measure(
    name: str,
    inputs: Mapping[str, pathlib.Path],
    *,
    slots: int,
    times: int,
    minutes: float,
    heap_mib: int,
) -> None:
    """Runs the component once in its own process, with a fresh cluster, and prints a row."""
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = pathlib.Path(made)
        arguments: Sequence[str] = DIRECT
        if slots:
            pom = pathlib.Path(__file__).with_name("pom.xml")
            cluster = FlinkCluster(folder / "cluster", java_server.fetch(pom), heap_mib=heap_mib)
            stack.enter_context(cluster)
            cluster.start_all()
            # The job of a hundred times the rows takes longer than a test's.
            arguments = (*cluster.arguments(parallelism=slots), "--job_server_timeout=86400")
        used: dict[int, float] = _processor_seconds()
        before, started = dict(used), time.monotonic()
        peak = 0
        with (folder / "log.txt").open("wb") as log:
            places = json.dumps({key: str(path) for key, path in inputs.items()})
            program = [sys.executable, "-m", "tests.engines.flink.run_component", name, places]
            process = subprocess.Popen(
                [*program, str(folder), json.dumps(arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(),
            )
            in_time = True
            while process.poll() is None:
                used.update(_processor_seconds())
                peak = max(peak, _memory())
                in_time = in_time and time.monotonic() - started < 60 * minutes
                if not in_time:
                    process.kill()
                time.sleep(0.5)
        seconds = time.monotonic() - started
        if process.returncode and in_time:
            sys.exit((folder / "log.txt").read_text("utf-8", errors="replace")[-3000:])
    processor = sum(last - before.get(pid, 0.0) for pid, last in used.items())
    runner = f"Flink, {slots} slot{'s' if slots > 1 else ''}" if slots else "DirectRunner"
    row = (
        name,
        f"{ROWS * times:,}",
        runner,
        f"{seconds:.0f}" if in_time else f"ended after {seconds:.0f}",
        f"{processor:.0f}",
        f"{peak >> 20:,} MiB",
    )
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
