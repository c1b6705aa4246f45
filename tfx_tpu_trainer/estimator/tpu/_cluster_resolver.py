"""A `TPUClusterResolver` that explains a missing TPU in one line, and one for emulated TPU cores."""

from __future__ import annotations

import urllib.error
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.places.choice import (
    EMULATE_VARIABLE,
    emulated_replicas,
    environment_emulates,
)
from tfx_tpu_trainer.estimator.tpu.cores.layout import CORES_PER_HOST


class TPUNotFoundError(urllib.error.URLError):
    """A program named a TPU, and Google Cloud could not be asked for it."""

    def __str__(self) -> str:
        return str(self.reason)


class TPUClusterResolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Finds a TPU by its name; mirrors `tf.distribute.cluster_resolver.TPUClusterResolver`.

    With TFX_TPU_TRAINER_EMULATE=1 in the environment, any name is that of the emulated cores of this process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> TPUClusterResolver:
        """Makes a resolver; where the environment emulates cores, it is the one for those."""
        return super().__new__(EmulatedTPUClusterResolver if environment_emulates() else cls)

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        **options: Any,
    ) -> None:
        """Asks Google Cloud for the TPU, unless it is named by an address or `"local"`.

        Args:
            tpu: The TPU's name or address. Defaults to `None`: what the environment names.
            zone: Its zone. Defaults to `None`, this machine's.
            project: Its project. Defaults to `None`, this machine's.
            **options: Further arguments of TensorFlow's.

        Raises:
            TPUNotFoundError: If Google Cloud can't be asked.
        """
        try:
            super().__init__(tpu, zone, project, **options)
        except urllib.error.URLError as error:
            raise TPUNotFoundError(
                f"TPUClusterResolver(tpu={tpu!r}): the TPU can't be looked up, as this machine has no metadata server "
                f"of Google Cloud ({error}). Run the program there, or on emulated cores with {EMULATE_VARIABLE}=1 in "
                "the environment, or name no TPU."
            ) from None

    @staticmethod
    def connect(
        tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """Makes a resolver and initializes its TPU.

        Args:
            tpu: As in the constructor, like the others.
            zone: See there.
            project: See there.

        Returns:
            The resolver.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        if not isinstance(resolver, EmulatedTPUClusterResolver):
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        return resolver


class EmulatedTPUClusterResolver(TPUClusterResolver):
    """Answers for the TPU that a program names while TPU cores are emulated.

    TensorFlow's own asks Google Cloud for the TPU's address in its constructor, and fails where
    there is none. This one asks nobody: the cluster is this process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> EmulatedTPUClusterResolver:
        """Makes one, whatever the environment says."""
        return object.__new__(cls)

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        **options: Any,
    ) -> None:
        """Keeps the name; the other arguments are for Google Cloud, which is not asked.

        Args:
            tpu: The TPU's name or address. Defaults to `None`.
            zone: Not used.
            project: Not used.
            job_name: Name of the job that has the TPU. Defaults to `"worker"`.
            **options: Not used.
        """
        # For this name alone TensorFlow's constructor makes no client of Google Cloud.
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
