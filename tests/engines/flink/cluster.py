"""A Flink session cluster of processes on this machine, with Beam's job server before it and worker pools behind it."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.engines import jars
from tests.engines.flink.forwarding import forwarded
from tests.free_ports import free_ports
from tfx_tpu_trainer.runner.local_runner import child_environment

START_SECONDS = 120
# The name at which each TaskManager finds the pool beside it.
_POOL = "worker-pool"
# What Flink 1.16 reaches into, and Java 17 keeps closed.
_OPENED = (
    *("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text"),
    *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
    "sun.nio.ch",
)
_JAVA = (
    "java",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
)
_CONFIGURATION = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc_port}
jobmanager.bind-host: 127.0.0.1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest_port}
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: 1
# Without Flink's scripts, which work these out, each part of a TaskManager's memory is said.
taskmanager.cpu.cores: 1
taskmanager.memory.task.heap.size: 400m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 256m
taskmanager.memory.network.max: 256m
# An Evaluator's job hands rows over in so many places that the buffers of Flink's sorted way, 512 for each, do not do.
taskmanager.network.sort-shuffle.min-parallelism: 1000
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
# Beam's libraries are the cluster's own: Beam then lets its workers live on from one stage of a job to the next.
classloader.resolve-order: parent-first
# A job whose TaskManager dies begins again on another; the death shows within seconds. Each task that was there counts
# as an attempt.
restart-strategy: fixed-delay
restart-strategy.fixed-delay.attempts: 100
restart-strategy.fixed-delay.delay: 1 s
# A job server that reaches no Flink says so after 2 attempts; 20, in a minute, are the default.
rest.retry.max-attempts: 2
heartbeat.interval: 1000
heartbeat.timeout: 15000
io.tmp.dirs: {folder}/tmp
"""


class FlinkCluster(contextlib.ExitStack):
    """Processes that are started one by one, and end with the block.

    Attributes:
        task_managers: The TaskManagers' processes by number.
        pools: The worker pools' processes, each by the number of its TaskManager.
    """

    def __init__(self, folder: pathlib.Path, libraries: pathlib.Path) -> None:
        """Writes the configuration.

        Args:
            folder: Where configuration, logs and temporary files go.
            libraries: Folder of Flink's and Beam's .jar files.
        """
        super().__init__()
        self.task_managers: dict[int, subprocess.Popen[bytes]] = {}
        self.pools: dict[int, subprocess.Popen[bytes]] = {}
        self._folder, self._libraries = folder, libraries
        free = [int(address.rpartition(":")[2]) for address in free_ports(4)]
        rpc_port, self._rest_port, self._job_port, self._pool_port = free
        (folder / "tmp").mkdir(parents=True)
        text = _CONFIGURATION.format(folder=folder, rpc_port=rpc_port, rest_port=self._rest_port)
        (folder / "flink-conf.yaml").write_text(text, encoding="utf-8")

    @property
    def master(self) -> str:
        """Address of the JobManager's REST API."""
        return f"127.0.0.1:{self._rest_port}"

    def arguments(self, *, parallelism: int) -> tuple[str, ...]:
        """Returns the Beam arguments that run a job here."""
        return (
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{self._job_port}",
            "--job_server_timeout=600",
            f"--parallelism={parallelism}",
            "--environment_type=EXTERNAL",
            f"--environment_config={_POOL}:{self._pool_port}",
            # How long a worker lives on without work; without, each stage of a job would import TensorFlow again.
            "--environment_cache_millis=20000",
            # The workers have everything: without a word on it TFX packs itself up for them.
            "--sdk_container_image=of-the-worker-pool",
        )

    def start_all(self) -> None:
        """Starts a JobManager, two TaskManagers of one slot, each with its pool, and Beam's job server."""
        self.start_job_manager()
        self.start_job_server()
        for number in (1, 2):
            self.start_task_manager(number)
        self.wait_for(lambda: self.ask("overview")["taskmanagers"] == 2, "two TaskManagers")

    def start_job_manager(self) -> None:
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self._java("job_manager", "400m", main, "--configDir", str(self._folder))

    def start_task_manager(self, number: int) -> None:
        """Starts a TaskManager with a pool of its own: it tells its workers by names that each TaskManager uses."""
        # A pool listens on all addresses; what makes two of one port is that each is found at another address.
        own = int(free_ports(1)[0].rpartition(":")[2])
        address = f"127.0.1.{number}"
        self.pools[number] = self._start(
            f"worker_pool_{number}",
            *("python", "-m", "apache_beam.runners.worker.worker_pool_main"),
            f"--service_port={own}",
        )
        self.enter_context(forwarded((address, self._pool_port), ("127.0.0.1", own)))
        hosts = self._folder / f"hosts_{number}"
        names = f"127.0.0.1 localhost {socket.gethostname()}\n{address} {_POOL}\n"
        hosts.write_text(names, encoding="utf-8")
        self.task_managers[number] = self._java(
            f"task_manager_{number}",
            "528m",
            "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
            *("--configDir", str(self._folder)),
            options=(f"-Djdk.net.hosts.file={hosts}",),
        )

    def start_job_server(self) -> None:
        self._java(
            "job_server",
            "400m",
            "org.apache.beam.runners.flink.FlinkJobServerDriver",
            f"--flink-master={self.master}",
            f"--flink-conf-dir={self._folder}",
            f"--job-port={self._job_port}",
            *("--artifact-port=0", "--expansion-port=0"),
            f"--artifacts-dir={self._folder / 'artifacts'}",
        )
        self.wait_for(lambda: "JobService started on" in self.log("job_server"), "job server")

    def ask(self, path: str) -> Any:
        """Asks the JobManager's REST API."""
        with urllib.request.urlopen(f"http://{self.master}/{path}", timeout=30) as answer:
            return json.load(answer)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", errors="replace")

    def started_workers(self, number: int) -> list[str]:
        """The ids of the workers that the pool of a TaskManager has started, each one a process."""
        return re.findall(
            r'Starting worker .*?worker_id="([^"]+)"', self.log(f"worker_pool_{number}")
        )

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Waits until a condition holds; what can't be reached yet has not fulfilled it."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if condition():
                    return
            assert time.monotonic() < deadline, f"after {START_SECONDS} s still no {what}"
            time.sleep(0.1)

    def _java(
        self, name: str, heap: str, main: str, *words: str, options: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        path = jars.class_path(self._libraries)
        return self._start(name, *_JAVA, *options, f"-Xmx{heap}", "-cp", path, main, *words)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.enter_context((self._folder / f"{name}.log").open("wb")),
            stderr=subprocess.STDOUT,
            # Its PATH begins with the virtual environment: a pool starts its workers as plain `python`.
            env={**child_environment(), "FLINK_CONF_DIR": str(self._folder)},
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
