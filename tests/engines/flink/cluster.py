"""A Flink session cluster of processes on this machine, with Beam's job server before it and worker pools behind it."""

import json
import pathlib
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.engines.beam_processes import BeamProcesses
from tests.engines.flink.forwarding import forwarded
from tests.free_ports import free_ports

# The name by which each TaskManager finds the pool next to it.
_POOL = "worker-pool"
_FRAMEWORK_HEAP_MIB = 128
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
taskmanager.memory.task.heap.size: {heap_mib}m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.framework.heap.size: {framework_heap_mib}m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 256m
taskmanager.memory.network.max: 256m
# An Evaluator's job hands rows over in so many places that the buffers of Flink's sorted way, 512 for each, do not do.
taskmanager.network.sort-shuffle.min-parallelism: 1000
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
# Otherwise a TaskManager whose heap is full loses only the thread that met it, and the job waits for that thread.
cluster.uncaught-exception-handling: FAIL
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


class FlinkCluster(BeamProcesses):
    """A JobManager, TaskManagers and a job server, each started by its method.

    Attributes:
        task_managers: The TaskManagers' processes by number.
        pools: The worker pools' processes, each by the number of its TaskManager.
    """

    def __init__(
        self, folder: pathlib.Path, libraries: pathlib.Path, *, heap_mib: int = 400
    ) -> None:
        """Writes the configuration.

        Args:
            folder: Where configuration, logs and temporary files go.
            libraries: Folder of Flink's and Beam's .jar files.
            heap_mib: Heap of each TaskManager's tasks, in MiB. Defaults to 400.
        """
        self.task_managers: dict[int, subprocess.Popen[bytes]] = {}
        self.pools: dict[int, subprocess.Popen[bytes]] = {}
        free = [int(address.rpartition(":")[2]) for address in free_ports(4)]
        rpc_port, self._rest_port, job_port, self._pool_port = free
        super().__init__(folder, libraries, job_port=job_port, pool=f"{_POOL}:{self._pool_port}")
        self._heap_mib = heap_mib
        text = _CONFIGURATION.format(
            folder=folder,
            rpc_port=rpc_port,
            rest_port=self._rest_port,
            heap_mib=heap_mib,
            framework_heap_mib=_FRAMEWORK_HEAP_MIB,
        )
        (folder / "flink-conf.yaml").write_text(text, encoding="utf-8")

    @property
    def master(self) -> str:
        """Address of the JobManager's REST API."""
        return f"127.0.0.1:{self._rest_port}"

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
        """Starts a TaskManager with its own pool: it gives its workers names that each TaskManager uses."""
        # A pool listens on all addresses; what makes two of one port is that each is found at another address.
        own = int(free_ports(1)[0].rpartition(":")[2])
        address = f"127.0.1.{number}"
        self.pools[number] = self.start_pool(f"worker_pool_{number}", own)
        self.enter_context(forwarded((address, self._pool_port), ("127.0.0.1", own)))
        hosts = self._folder / f"hosts_{number}"
        names = f"127.0.0.1 localhost {socket.gethostname()}\n{address} {_POOL}\n"
        hosts.write_text(names, encoding="utf-8")
        self.task_managers[number] = self._java(
            f"task_manager_{number}",
            f"{self._heap_mib + _FRAMEWORK_HEAP_MIB}m",
            "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
            *("--configDir", str(self._folder)),
            options=(f"-Djdk.net.hosts.file={hosts}",),
        )

    def start_job_server(self) -> None:
        self.start_driver(
            "400m",
            "org.apache.beam.runners.flink.FlinkJobServerDriver",
            f"--flink-master={self.master}",
            f"--flink-conf-dir={self._folder}",
        )

    def ask(self, path: str) -> Any:
        """Queries the JobManager's REST API."""
        with urllib.request.urlopen(f"http://{self.master}/{path}", timeout=30) as answer:
            return json.load(answer)

    def started_workers(self, number: int) -> list[str]:
        """The ids of the workers that the pool of a TaskManager has started, each one a process."""
        return self.workers_of(f"worker_pool_{number}")

    def _environment(self) -> Mapping[str, str]:
        return {**super()._environment(), "FLINK_CONF_DIR": str(self._folder)}
