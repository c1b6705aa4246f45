"""Beam's job server with Spark's embedded master: driver and executors are threads of one process."""

import pathlib
from collections.abc import Mapping

from tests.engines.beam_processes import BeamProcesses
from tests.free_ports import free_ports

_POOL = "worker_pool"


class SparkJobServer(BeamProcesses):
    """A job server whose jobs run in its own process, and the pool of their workers."""

    def __init__(self, folder: pathlib.Path, libraries: pathlib.Path, *, threads: int) -> None:
        """Chooses the ports.

        Args:
            folder: Where logs and temporary files go.
            libraries: Folder of Spark's and Beam's .jar files.
            threads: How many tasks Spark runs at the same time.
        """
        job_port, self._pool_port = (int(address.rpartition(":")[2]) for address in free_ports(2))
        self._threads = threads
        super().__init__(folder, libraries, job_port=job_port, pool=f"localhost:{self._pool_port}")

    def start_all(self) -> None:
        """Starts the pool and the job server."""
        self.start_pool(_POOL, self._pool_port)
        self.start_driver(
            "1g",
            "org.apache.beam.runners.spark.SparkJobServerDriver",
            f"--spark-master-url=local[{self._threads}]",
        )

    def started_workers(self) -> list[str]:
        """The ids of the workers that the pool has started, each one a process."""
        return self.workers_of(_POOL)

    def _environment(self) -> Mapping[str, str]:
        # Spark looks up this machine's name for an address at which others reach it; nobody needs to.
        return {**super()._environment(), "SPARK_LOCAL_IP": "127.0.0.1"}
