"""What `params["context"]` tells a user's functions of the TPU system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfx_tpu_trainer.engine.feeding.core_layout import CoreLayout, InputMode, number_of_sources


class TPUContext:
    """The layout of the TPU system, in `params["context"]` of input_fn and model_fn.

    Mirrors the context of `tf.compat.v1.estimator.tpu`; it is not there with `use_tpu=False`.
    """

    def __init__(
        self,
        layout: CoreLayout,
        input_mode: InputMode,
        *,
        invocation: int | None = None,
        job: str | None = None,
    ) -> None:
        """Describes a system.

        Args:
            layout: Replicas, cores and hosts.
            input_mode: How the rows of the input travel to the replicas.
            invocation: Which call of input_fn this is for. Defaults to `None`: for model_fn.
            job: Name of the hosts' job. Defaults to `None`: this process.
        """
        self._layout = layout
        self._input_mode = input_mode
        self._invocation = invocation
        self._job = job

    @property
    def num_replicas(self) -> int:
        """Copies of the model."""
        return self._layout.num_replicas

    @property
    def num_hosts(self) -> int:
        """Hosts of the system."""
        return self._layout.num_hosts

    @property
    def num_of_replicas_per_host(self) -> int:
        """Replicas that one host feeds.

        Raises:
            ValueError: If a replica has more than one core.
        """
        if self._layout.num_cores_per_replica > 1:
            raise ValueError(
                "num_of_replicas_per_host is not supported for model_parallelism, with "
                f"num_cores_per_replica={self._layout.num_cores_per_replica}."
            )
        return self._layout.replicas_per_host

    @property
    def current_host(self) -> int:
        """Host that calls input_fn.

        Raises:
            RuntimeError: If it is asked for in model_fn.
        """
        invocation = self._input_fn_invocation()
        if self._input_mode is InputMode.PER_SHARD_V1:
            return invocation // self._layout.replicas_per_host
        return invocation

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Tells which part of the input this call of input_fn gives.

        Returns:
            The device of the host, the number of this call, the number of calls in all, and how
            many replicas this call feeds.

        Raises:
            RuntimeError: If it is asked for in model_fn.
        """
        invocation = self._input_fn_invocation()
        calls = number_of_sources(self._input_mode, self._layout)
        return (
            self.tpu_host_placement_function(self.current_host),
            invocation,
            calls,
            self._layout.num_replicas // calls,
        )

    @property
    def device_assignment(self) -> Any:
        """The placement of replicas on cores; `None`, as every replica is one core.

        Raises:
            RuntimeError: If it is asked for in input_fn.
        """
        if self._invocation is not None:
            raise RuntimeError(
                "This TPUContext instance must not be called from input_fn: device_assignment is "
                "there for model_fn only."
            )

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """Gives the CPU device of a replica's host, and the ordinal of its core there."""
        per_host = self._layout.replicas_per_host
        host, ordinal = divmod(replica_id, per_host)
        return self.tpu_host_placement_function(host), ordinal

    @property
    def tpu_host_placement_function(self) -> Callable[[int], str]:
        """A function from the number of a host to its CPU device."""
        job = f"/job:{self._job}" if self._job else ""
        return lambda host_id: f"{job}/task:{host_id}/device:CPU:0"

    def _input_fn_invocation(self) -> int:
        if self._invocation is None:
            raise RuntimeError(
                "This TPUContext instance must not be called from model_fn: the deployment and "
                "the current host are there for input_fn only."
            )
        return self._invocation
