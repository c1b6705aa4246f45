"""What a Beam cluster on this machine is made of, and the inputs that the taxi pipeline gave its components."""

import contextlib
import pathlib
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.engines import java_server
from tests.pipeline_runs import PipelineRun
from tfx_tpu_trainer.workbench.run.local_runner import child_environment


def taxi_inputs(taxi_run: PipelineRun) -> dict[str, dict[str, Path]]:
    """Returns the folder of each input, by the components' names."""
    examples = taxi_run.output_folder("CsvExampleGen", "examples")
    schema = taxi_run.output_folder("SchemaGen", "schema")
    model = taxi_run.output_folder("TpuTrainer", "model")
    return {
        "StatisticsGen": {"examples": examples},
        "Transform": {"examples": examples, "schema": schema},
        "Evaluator": {"examples": examples, "model": model, "schema": schema},
    }


START_SECONDS = 120
# What Flink 1.16 and Spark 3.2 reach into, and Java 17 keeps closed.
_OPENED = (
    *("java.io", "java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.nio"),
    *("java.text", "java.time", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action"),
    "sun.util.calendar",
)
_JAVA = (
    "java",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
)


class BeamProcesses(contextlib.ExitStack):
    """Processes that are started one by one, and end with the block."""

    def __init__(
        self, folder: pathlib.Path, libraries: pathlib.Path, *, job_port: int, pool: str
    ) -> None:
        """Makes the folder.

        Args:
            folder: Where configuration, logs and temporary files go.
            libraries: Folder of .jar files.
            job_port: Port of the job server.
            pool: Host and port at which the cluster finds a worker pool.
        """
        super().__init__()
        self._folder, self._libraries = folder, libraries
        self._job_port, self._pool = job_port, pool
        (folder / "tmp").mkdir(parents=True)

    def arguments(self, *, parallelism: int) -> tuple[str, ...]:
        """Returns the Beam arguments that run a job here."""
        return (
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{self._job_port}",
            "--job_server_timeout=600",
            f"--parallelism={parallelism}",
            "--environment_type=EXTERNAL",
            f"--environment_config={self._pool}",
            # How long a worker lives on without work; without, each stage of a job would import TensorFlow again.
            "--environment_cache_millis=20000",
            # The workers have everything: without a word on it TFX packs itself up for them.
            "--sdk_container_image=of-the-worker-pool",
        )

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", errors="replace")

    def workers_of(self, pool: str) -> list[str]:
        """The ids of the workers that a pool has started, each one a process."""
        return re.findall(r'Starting worker .*?worker_id="([^"]+)"', self.log(pool))

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Waits until a condition holds; what can't be reached yet has not fulfilled it."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            assert time.monotonic() < deadline, f"after {START_SECONDS} s still no {what}"
            time.sleep(0.1)

    def start_pool(self, name: str, port: int) -> subprocess.Popen[bytes]:
        """Starts a worker pool, which listens on all addresses."""
        module = "apache_beam.runners.worker.worker_pool_main"
        return self._start(name, "python", "-m", module, f"--service_port={port}")

    def start_driver(self, heap: str, main: str, *words: str) -> None:
        """Starts Beam's job server and waits until it answers."""
        self._java(
            "job_server",
            heap,
            main,
            *words,
            f"--job-port={self._job_port}",
            *("--artifact-port=0", "--expansion-port=0"),
            f"--artifacts-dir={self._folder / 'artifacts'}",
        )
        self.wait_for(lambda: "JobService started on" in self.log("job_server"), "job server")

    def _environment(self) -> Mapping[str, str]:
        # Its PATH begins with the virtual environment: a pool starts its workers as plain `python`.
        return child_environment()

    def _java(
        self, name: str, heap: str, main: str, *words: str, options: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        path = java_server.class_path(self._libraries)
        return self._start(name, *_JAVA, *options, f"-Xmx{heap}", "-cp", path, main, *words)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.enter_context((self._folder / f"{name}.log").open("wb")),
            stderr=subprocess.STDOUT,
            env=self._environment(),
        )
        self.callback(_end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
