"""The TPU system as a user's functions see it, in `params["context"]`."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import count_rows
from tfx_tpu_trainer.estimator.tpu.cores.layout import (
    CoreLayout,
    InputMode,
    assign_cores,
    emulated_topology,
    number_of_sources,
)

# The original's device of each host if there is no job: this process.
_THIS_HOST = "/replica:0/task:0/device:CPU:0"


class TPUContext:
    """The layout of the TPU system, in `params["context"]` of input_fn and model_fn.

    Mirrors the context of `tf.compat.v1.estimator.tpu`; with `use_tpu=False` there is none.
    """

    def __init__(
        self,
        layout: CoreLayout,
        input_mode: InputMode,
        *,
        invocation: int | None = None,
        job: str | None = None,
        device_assignment: tf.tpu.experimental.DeviceAssignment | None = None,
    ) -> None:
        """Describes a system to model_fn or, with `invocation`, to that call of input_fn."""
        self._layout = layout
        self._input_mode = input_mode
        self._invocation = invocation
        self._job = job
        self._given_assignment = device_assignment

    @property
    def num_replicas(self) -> int:
        """Number of copies of the model."""
        return self._layout.num_replicas

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return self._layout.num_hosts

    @property
    def num_of_replicas_per_host(self) -> int:
        """Number of replicas that one host feeds.

        Raises:
            ValueError: If there is model parallelism.
        """
        if self._layout.model_parallelism:
            raise ValueError(
                "num_of_replicas_per_host is not supported for model_parallelism, with "
                f"num_cores_per_replica={self._layout.num_cores_per_replica}."
            )
        return self._layout.replicas_per_host

    @property
    def current_host(self) -> int:
        """Number of the host that calls input_fn.

        Raises:
            RuntimeError: If it is called from model_fn.
        """
        invocation = self._input_fn_invocation()
        if self._input_mode is InputMode.PER_SHARD_V1:
            return invocation // self._layout.replicas_per_host
        return self._layout.host_of_replica(invocation) if self._layout.spans_hosts else invocation

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Returns which part of the input this call of input_fn returns.

        Returns:
            The device of the host, the number of this call, the total number of calls, and how
            many replicas this call feeds.

        Raises:
            RuntimeError: If it is called from model_fn.
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
        """The placement of replicas on cores; `None` without model parallelism.

        Raises:
            RuntimeError: If it is called from input_fn.
        """
        if self._invocation is not None:
            raise RuntimeError(
                "This TPUContext instance must not be called from input_fn: device_assignment is "
                "available only to model_fn."
            )
        return self._assignment

    @functools.cached_property
    def _assignment(self) -> tf.tpu.experimental.DeviceAssignment | None:
        if not self._layout.model_parallelism:
            return None
        return self._given_assignment or assign_cores(self._layout, emulated_topology(self._layout))

    def device_for_replica(self, replica_id: int) -> tuple[str, int]:
        """Returns the CPU device of a replica's host, and the ordinal of its core there."""
        if self._assignment is not None:
            device = self._assignment.host_device(replica=replica_id, job=self._job)
            return device, self._assignment.tpu_ordinal(replica=replica_id)
        host, ordinal = divmod(replica_id, self._layout.replicas_per_host)
        job = f"/job:{self._job}" if self._job else ""
        return f"{job}/task:{host}/device:CPU:0", ordinal

    @property
    def tpu_host_placement_function(self) -> Callable[[int], str]:
        """A function from the number of a host to its CPU device."""
        if not self._job:
            return lambda host_id: _THIS_HOST
        return lambda host_id: f"/job:{self._job}/task:{host_id}/device:CPU:0"

    def _input_fn_invocation(self) -> int:
        if self._invocation is None:
            raise RuntimeError(
                "This TPUContext instance must not be called from model_fn: the deployment and "
                "the current host are available only to input_fn."
            )
        return self._invocation


IS_PADDING = "is_padding"


class FeaturesWithPadding(dict):
    """Features whose `features["is_padding"]` marks the rows of padding.

    Only a lookup finds the key; an iteration does not, since a model_fn that makes a column of every feature must not
    get another one. The original documents the key but never had it.
    """

    def __init__(
        self, features: Any = (), *, make_padding: Callable[[], tf.Tensor | None] | None = None
    ) -> None:
        """Wraps features."""
        super().__init__(features)
        self._make_padding = make_padding

    def __missing__(self, key: str) -> tf.Tensor:
        """Returns the padding for its key."""
        padding = None
        if key == IS_PADDING and self._make_padding is not None:
            padding = self._make_padding()
        if padding is None:
            raise KeyError(key)
        return padding


def with_padding(features: Any, is_padding: tf.Tensor) -> Any:
    """Returns features with padding; anything but a plain dict stays unchanged."""
    return _with(features, lambda: is_padding)


def without_padding(features: Any) -> Any:
    """Returns features without rows of padding; anything but a plain dict stays unchanged."""

    def none_is_padding() -> tf.Tensor | None:
        rows = count_rows(features)
        return None if rows is None else tf.zeros([rows], tf.bool)

    return _with(features, none_is_padding)


def _with(features: Any, make_padding: Callable[[], tf.Tensor | None]) -> Any:
    # A tensor or a tuple has no keys, and a subclass of dict may treat missing keys differently.
    if type(features) is not dict:
        return features
    return FeaturesWithPadding(features, make_padding=make_padding)
