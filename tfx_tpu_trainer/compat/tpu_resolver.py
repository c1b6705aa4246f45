"""A `TPUClusterResolver` for programs that name a TPU while TPU cores are emulated."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.feeding.core_layout import CORES_PER_HOST
from tfx_tpu_trainer.estimator.tpu.run_place import emulated_replicas


class EmulatedTPUClusterResolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Answers for the TPU that a program names; mirrors `TPUClusterResolver`.

    TensorFlow's own asks Google Cloud for the TPU's address in its constructor, and fails where
    there is none. This one asks nobody: the cluster is this process.
    """

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Any = "default",
        service: Any = None,
        discovery_url: str | None = None,
    ) -> None:
        """Keeps the names; the rest is of a cloud that is not asked.

        Args:
            tpu: The TPU's name or address. Defaults to `None`.
            zone: Not used.
            project: Not used.
            job_name: Name of the job that has the TPU. Defaults to `"worker"`.
            coordinator_name: Not used.
            coordinator_address: Not used.
            credentials: Not used.
            service: Not used.
            discovery_url: Not used.
        """
        super().__init__(tpu="local", job_name=job_name)
        self._named = tpu

    def __repr__(self) -> str:
        return f"<TPUClusterResolver of the emulated TPU {self._named!r}>"

    @staticmethod
    def connect(
        tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> EmulatedTPUClusterResolver:
        """Returns a resolver; there is nothing to connect to.

        Args:
            tpu: The TPU's name or address. Defaults to `None`.
            zone: Not used.
            project: Not used.

        Returns:
            The resolver.
        """
        return EmulatedTPUClusterResolver(tpu, zone, project)

    def get_tpu_system_metadata(self) -> Any:
        """Describes the emulated cores.

        Returns:
            A `tf.tpu.experimental.TPUSystemMetadata`, without devices.
        """
        cores = emulated_replicas()
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=cores,
            num_hosts=-(-cores // CORES_PER_HOST),
            num_of_cores_per_host=min(cores, CORES_PER_HOST),
            topology=None,
            devices=[],
        )

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Returns the number of cores of each host.

        Args:
            task_type: Not used.
            task_id: Not used.
            config_proto: Not used.

        Returns:
            `{"TPU": cores}`.
        """
        return {"TPU": min(emulated_replicas(), CORES_PER_HOST)}
