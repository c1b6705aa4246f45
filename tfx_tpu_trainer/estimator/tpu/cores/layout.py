"""How many replicas, cores and hosts there are, and which rows of the input each replica gets."""

from __future__ import annotations

import dataclasses
import enum
import math

CORES_PER_HOST = 8


class InputMode(enum.IntEnum):
    """How the rows of an input travel to the cores; the values of `InputPipelineConfig`."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5

    @classmethod
    def _missing_(cls, value: object) -> InputMode:
        names = ", ".join(f"{mode.name} ({mode.value})" for mode in cls)
        raise ValueError(
            f"per_host_input_for_training={value!r} is not one of InputPipelineConfig; give {names}, or "
            "True or False."
        )


@dataclasses.dataclass(frozen=True)
class CoreLayout:
    """The system that a model runs on.

    Attributes:
        num_replicas: Copies of the model.
        num_cores_per_replica: Cores of each copy.
        model_parallelism: Whether a number of cores per replica was asked for, be it one.
            Defaults to `False`.
        one_host: Whether a single host feeds all of them, however many there are.
        cores_per_host: Cores attached to a host. Defaults to 8, as on TPU v2 and v3.
    """

    num_replicas: int
    num_cores_per_replica: int = 1
    model_parallelism: bool = False
    one_host: bool = False
    cores_per_host: int = CORES_PER_HOST

    @property
    def num_hosts(self) -> int:
        """Hosts that feed the cores."""
        if self.one_host:
            return 1
        return math.ceil(self.num_replicas * self.num_cores_per_replica / self.cores_per_host)

    @property
    def spans_hosts(self) -> bool:
        """Whether a replica is wider than the host that feeds it."""
        return not self.one_host and self.num_cores_per_replica > self.cores_per_host

    def host_of_replica(self, replica: int) -> int:
        """Returns the host of a replica's first core."""
        if self.one_host:
            return 0
        return replica * self.num_cores_per_replica // self.cores_per_host

    @property
    def replicas_per_host(self) -> int:
        """Replicas that one host feeds."""
        if self.num_replicas % self.num_hosts:
            raise ValueError(
                f"{self.num_replicas} replicas of {self.num_cores_per_replica} cores can't be "
                f"spread evenly over {self.num_hosts} hosts of {self.cores_per_host} cores: choose "
                "a number of shards that can."
            )
        return self.num_replicas // self.num_hosts


@dataclasses.dataclass(frozen=True)
class RowSlice:
    """The rows that one replica gets in a step.

    Attributes:
        source: Which call of input_fn they come from.
        draw: Which element that the step takes from that source.
        piece: Which of the element's equal pieces.
        pieces: How many pieces the element is cut into.
    """

    source: int
    draw: int
    piece: int
    pieces: int


def number_of_sources(mode: InputMode, layout: CoreLayout) -> int:
    """Returns how often input_fn is called."""
    if mode is InputMode.PER_SHARD_V1:
        return layout.num_replicas
    if mode in (InputMode.BROADCAST, InputMode.SLICED):
        return 1
    return layout.num_replicas if layout.spans_hosts else layout.num_hosts


def row_slices(mode: InputMode, layout: CoreLayout) -> tuple[RowSlice, ...]:
    """Returns the rows of each replica, in their order."""
    replicas = range(layout.num_replicas)
    a_source_each = mode is InputMode.PER_HOST_V2 and layout.spans_hosts
    if mode is InputMode.PER_SHARD_V1 or a_source_each:
        return tuple(RowSlice(source=i, draw=0, piece=0, pieces=1) for i in replicas)
    if mode is InputMode.BROADCAST:
        return tuple(RowSlice(source=0, draw=0, piece=0, pieces=1) for _ in replicas)
    if mode is InputMode.SLICED:
        pieces = layout.num_replicas
        return tuple(RowSlice(source=0, draw=0, piece=i, pieces=pieces) for i in replicas)
    per_host = layout.replicas_per_host
    places = [divmod(i, per_host) for i in replicas]
    if mode is InputMode.PER_HOST_V2:
        return tuple(RowSlice(source=h, draw=i, piece=0, pieces=1) for h, i in places)
    return tuple(RowSlice(source=h, draw=0, piece=i, pieces=per_host) for h, i in places)


@dataclasses.dataclass(frozen=True)
class BatchSizes:
    """Batch sizes as the user's functions see them.

    Attributes:
        input_fn: `params["batch_size"]` of input_fn.
        model_fn: `params["batch_size"]` of model_fn.
    """

    input_fn: int
    model_fn: int


def batch_sizes(mode: InputMode, layout: CoreLayout, global_batch_size: int) -> BatchSizes:
    """Returns the batch sizes of a mode."""
    if mode is InputMode.BROADCAST:
        return BatchSizes(global_batch_size, global_batch_size)
    per_replica = global_batch_size // layout.num_replicas
    if mode in (InputMode.PER_SHARD_V1, InputMode.PER_HOST_V2):
        return BatchSizes(per_replica, per_replica)
    if mode is InputMode.SLICED:
        return BatchSizes(global_batch_size, per_replica)
    return BatchSizes(global_batch_size // layout.num_hosts, per_replica)
