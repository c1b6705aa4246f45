"""A `TPUClusterResolver` with a one-line error for a missing TPU, and one for emulated cores."""

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
    """A program named a TPU, and Google Cloud is not reachable."""

    def __str__(self) -> str:
        return str(self.reason)


class TPUClusterResolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Finds a TPU by its name; mirrors `tf.distribute.cluster_resolver.TPUClusterResolver`.

    With TFX_TPU_TRAINER_EMULATE=1 in the environment, any name refers to the emulated cores of this process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> TPUClusterResolver:
        """Makes a resolver; that of emulated cores if the environment emulates them."""
        return super().__new__(EmulatedTPUClusterResolver if environment_emulates() else cls)

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        **options: Any,
    ) -> None:
        """Looks up the TPU in Google Cloud, unless the name is an address or `"local"`.

        Args:
            tpu: The TPU's name or address. Defaults to `None`, the environment's.
            zone: Its zone. Defaults to `None`, this machine's.
            project: Its project. Defaults to `None`, this machine's.
            **options: Further arguments of TensorFlow's resolver.

        Raises:
            TPUNotFoundError: If Google Cloud is not reachable.
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
    """Replaces the TPU that a program names while TPU cores are emulated.

    TensorFlow's resolver looks up the TPU's address in Google Cloud, and fails elsewhere. Here the
    cluster is this process.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> EmulatedTPUClusterResolver:
        """Makes a resolver of emulated cores, regardless of the environment."""
        return object.__new__(cls)

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        **options: Any,
    ) -> None:
        """Stores the TPU's name; only Google Cloud needs the other arguments."""
        # Only for this name, TensorFlow's constructor makes no client of Google Cloud.
        super().__init__(tpu="local", job_name=job_name)
        self._named = tpu

    def __repr__(self) -> str:
        return f"<TPUClusterResolver of the emulated TPU {self._named!r}>"

    @staticmethod
    def connect(
        tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> EmulatedTPUClusterResolver:
        """Returns a resolver, since there is nothing to connect to."""
        return EmulatedTPUClusterResolver(tpu, zone, project)

    def get_tpu_system_metadata(self) -> Any:
        """Returns a `tf.tpu.experimental.TPUSystemMetadata` of the emulated cores, without devices."""
        cores = emulated_replicas()
        return tf.tpu.experimental.TPUSystemMetadata(
            num_cores=cores,
            num_hosts=-(-cores // CORES_PER_HOST),
            num_of_cores_per_host=min(cores, CORES_PER_HOST),
            topology=None,
            devices=[],
        )

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns the number of cores of each host, as `{"TPU": cores}`."""
        return {"TPU": min(emulated_replicas(), CORES_PER_HOST)}
