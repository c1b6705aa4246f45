"""Beam's portable road: the pipeline's Beam components on a job service with a pool of worker processes.

The job service is Beam's own, in Python; Flink's and Spark's take the same options.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline_runs import PipelineRun
from tests.pipelines.beam_results import (
    predictions,
    run_component,
    same_metrics,
    same_rows,
    same_statistics,
    same_transform_graph,
    taxi_components,
)
from tfx_tpu_trainer.workbench.run.local_runner import child_environment

DIRECT = (
    "--runner=DirectRunner",
    "--direct_running_mode=in_memory",
    "--sdk_container_image=of-this-process",
)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The components' runs on the pool, with the inputs that they had in the local run.

    Attributes:
        components: The pipeline's components by name.
        inputs: For each of them, the folders of its inputs.
        folder: Where outputs go.
        beam: The job service and its pool.
    """

    components: dict[str, Any]
    inputs: dict[str, dict[str, Path]]
    folder: Path
    beam: PortableBeam

    def at_once(self, *names: str) -> list[Path]:
        """Runs components at the same time, as an orchestrator does; gives their outputs' folders."""
        with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
            return list(threads.map(self._run, names))

    def _run(self, name: str) -> Path:
        return run_component(
            self.components[name], self.inputs[name], self.folder / name, self.beam.arguments
        )


@pytest.fixture(scope="module")
def runs(taxi_run: PipelineRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    examples = taxi_run.output_folder("CsvExampleGen", "examples")
    schema = taxi_run.output_folder("SchemaGen", "schema")
    model = taxi_run.output_folder("TpuTrainer", "model")
    folder = tmp_path_factory.mktemp("portable")
    with portable_beam(folder) as beam:
        yield Runs(
            components=taxi_components(folder / "root"),
            inputs={
                "CsvExampleGen": {},
                "StatisticsGen": {"examples": examples},
                "Transform": {"examples": examples, "schema": schema},
                "Evaluator": {"examples": examples, "model": model, "schema": schema},
                "BulkInferrer": {"examples": examples, "model": model},
            },
            folder=folder,
            beam=beam,
        )


@pytest.mark.e2e
@pytest.mark.sweep
def test_evaluator_and_bulk_inferrer_on_two_worker_processes(
    runs: Runs, taxi_run: PipelineRun, tmp_path: Path
) -> None:
    before = len(runs.beam.started_workers())
    evaluator, bulk_inferrer = runs.at_once("Evaluator", "BulkInferrer")
    assert len(runs.beam.started_workers()) >= before + 2
    assert runs.beam.most_at_once[0] >= 2

    same_metrics(evaluator / "evaluation", taxi_run.output_folder("Evaluator", "evaluation"))

    direct = run_component(
        runs.components["BulkInferrer"], runs.inputs["BulkInferrer"], tmp_path / "direct", DIRECT
    )
    found = predictions(bulk_inferrer / "inference_result")
    assert len(found) > 4_000
    # Rows are put together in other batches, and that moves the last digits of a float32.
    assert found == pytest.approx(predictions(direct / "inference_result"), rel=1e-5, abs=1e-7)


@pytest.mark.sweep
def test_example_gen_gives_the_same_rows(runs: Runs, taxi_run: PipelineRun) -> None:
    (example_gen,) = runs.at_once("CsvExampleGen")
    same_rows(example_gen / "examples", taxi_run.output_folder("CsvExampleGen", "examples"))


@pytest.mark.sweep
def test_statistics_gen_and_transform_on_two_worker_processes(
    runs: Runs, taxi_run: PipelineRun
) -> None:
    before = len(runs.beam.started_workers())
    statistics, transform = runs.at_once("StatisticsGen", "Transform")
    assert len(runs.beam.started_workers()) >= before + 2
    assert runs.beam.most_at_once[0] >= 2

    same_statistics(
        statistics / "statistics", taxi_run.output_folder("StatisticsGen", "statistics")
    )
    same_rows(
        transform / "transformed_examples",
        taxi_run.output_folder("Transform", "transformed_examples"),
    )
    same_transform_graph(
        transform / "transform_graph", taxi_run.output_folder("Transform", "transform_graph")
    )


START_SECONDS = 180


@dataclasses.dataclass(frozen=True)
class PortableBeam:
    """A running job service with its pool of workers.

    Attributes:
        arguments: Beam arguments that send a job there.
        pool_log: The pool's output; it names each worker that it starts.
        most_at_once: The largest number of worker processes seen at the same time, in a list of one.
    """

    arguments: tuple[str, ...]
    pool_log: Path
    most_at_once: list[int]

    def started_workers(self) -> list[str]:
        """The ids of the workers that the pool has started, each one a process."""
        text = self.pool_log.read_text(encoding="utf-8", errors="replace")
        return re.findall(r'Starting worker with command .*?worker_id="([^"]+)"', text)


@contextlib.contextmanager
def portable_beam(folder: Path) -> Iterator[PortableBeam]:
    """Starts both programs, as in docs/beam.md, and ends them.

    Args:
        folder: The folder for their logs and staged files.
    """
    port_file, pool_log = folder / "job_service.port", folder / "worker_pool.log"
    pool_port = _free_port()
    with contextlib.ExitStack() as stack:
        _start(
            stack,
            folder / "job_service.log",
            "apache_beam.runners.portability.local_job_service_main",
            f"--port_file={port_file}",
            f"--staging_dir={folder / 'staging'}",
        )
        pool = _start(
            stack,
            pool_log,
            "apache_beam.runners.worker.worker_pool_main",
            f"--service_port={pool_port}",
        )
        _wait_for(port_file.exists, "the job service")
        _wait_for(lambda: _answers(pool_port), "the worker pool")
        most_at_once = [0]
        stop = threading.Event()
        watcher = threading.Thread(target=_watch, args=(pool.pid, most_at_once, stop))
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(stop.set)
        yield PortableBeam(
            arguments=(
                "--runner=PortableRunner",
                f"--job_endpoint=localhost:{port_file.read_text()}",
                # The longest that a job may take, its state stream being closed then; a minute by default.
                "--job_server_timeout=3600",
                "--environment_type=EXTERNAL",
                f"--environment_config=localhost:{pool_port}",
                # The workers have everything: without a word on it TFX packs itself up for them.
                "--sdk_container_image=of-the-worker-pool",
            ),
            pool_log=pool_log,
            most_at_once=most_at_once,
        )


def _start(
    stack: contextlib.ExitStack, log: Path, module: str, *arguments: str
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stack.enter_context(log.open("wb")),
        stderr=subprocess.STDOUT,
        # Its PATH begins with the virtual environment: the pool starts its workers as plain `python`.
        env=child_environment(),
    )

    def end() -> None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


def _wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not started after {START_SECONDS} s"
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("localhost", 0))
        return chosen.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def _watch(pool: int, most_at_once: list[int], stop: threading.Event) -> None:
    while not stop.wait(0.2):
        most_at_once[0] = max(most_at_once[0], len(_living_children(pool)))


def _living_children(pid: int) -> list[int]:
    """The child processes that have not ended; a pool does not collect those that have."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # After the program's name, which may hold spaces: state, parent.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(folder.name))
    return found
