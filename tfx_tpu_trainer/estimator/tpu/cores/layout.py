"""Computes the numbers of replicas, cores and hosts, and each replica's rows of the input."""

from __future__ import annotations

import dataclasses
import enum
import math

import tensorflow as tf

CORES_PER_HOST = 8


class InputMode(enum.IntEnum):
    """How input rows reach the cores; the values of `InputPipelineConfig`."""

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
    """The system that a model runs on."""

    num_replicas: int  # Copies of the model.
    num_cores_per_replica: int = 1  # Cores of each copy.
    # Whether a number of cores per replica was given, even 1. Defaults to `False`.
    model_parallelism: bool = False
    one_host: bool = False  # Whether a single host feeds all of them, for any number of hosts.
    # Cores attached to a host. Defaults to 8, as on TPU v2 and v3.
    cores_per_host: int = CORES_PER_HOST

    @property
    def num_hosts(self) -> int:
        """Hosts that feed the cores."""
        if self.one_host:
            return 1
        return math.ceil(self.num_replicas * self.num_cores_per_replica / self.cores_per_host)

    @property
    def spans_hosts(self) -> bool:
        """Whether a replica is larger than the host that feeds it."""
        return not self.one_host and self.num_cores_per_replica > self.cores_per_host

    def host_of_replica(self, replica: int) -> int:
        """Returns the host of a replica's first core."""
        if self.one_host:
            return 0
        return replica * self.num_cores_per_replica // self.cores_per_host

    @property
    def replicas_per_host(self) -> int:
        """Replicas per feeding host."""
        if self.num_replicas % self.num_hosts:
            raise ValueError(
                f"{self.num_replicas} replicas of {self.num_cores_per_replica} cores can't be "
                f"spread evenly over {self.num_hosts} hosts of {self.cores_per_host} cores: choose "
                "a number of shards that can."
            )
        return self.num_replicas // self.num_hosts


@dataclasses.dataclass(frozen=True)
class RowSlice:
    """One replica's rows in a step."""

    source: int  # The call of input_fn that they come from.
    draw: int  # Which of the elements that the step takes from that source.
    piece: int  # Which of the element's equal pieces.
    pieces: int  # How many pieces the element is cut into.


def number_of_sources(mode: InputMode, layout: CoreLayout) -> int:
    """Returns the number of input_fn calls."""
    if mode is InputMode.PER_SHARD_V1:
        return layout.num_replicas
    if mode in (InputMode.BROADCAST, InputMode.SLICED):
        return 1
    return layout.num_replicas if layout.spans_hosts else layout.num_hosts


def row_slices(mode: InputMode, layout: CoreLayout) -> tuple[RowSlice, ...]:
    """Returns each replica's rows, in order."""
    # Four replicas on two hosts, eight rows in a step. Replica 3 gets:
    #
    # - PER_SHARD_V1: input_fn is called four times; all of what call 3 gives, two rows.
    # - PER_HOST_V1: called twice, for four rows each; the second half of what call 1 gives.
    # - PER_HOST_V2: called twice, for two rows each; the second batch of call 1 in this step.
    # - BROADCAST: called once, for eight rows; all of them, as each replica does.
    # - SLICED: called once, for eight rows; the last quarter.
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
    """Batch sizes as the user's functions see them."""

    input_fn: int  # `params["batch_size"]` of input_fn.
    model_fn: int  # `params["batch_size"]` of model_fn.


def batch_sizes(mode: InputMode, layout: CoreLayout, global_batch_size: int) -> BatchSizes:
    """Returns a mode's batch sizes."""
    if mode is InputMode.BROADCAST:
        return BatchSizes(global_batch_size, global_batch_size)
    per_replica = global_batch_size // layout.num_replicas
    if mode in (InputMode.PER_SHARD_V1, InputMode.PER_HOST_V2):
        return BatchSizes(per_replica, per_replica)
    if mode is InputMode.SLICED:
        return BatchSizes(global_batch_size, per_replica)
    return BatchSizes(global_batch_size // layout.num_hosts, per_replica)


_CORES_PER_CHIP = 2


def assign_cores(
    layout: CoreLayout, topology: tf.tpu.experimental.Topology
) -> tf.tpu.experimental.DeviceAssignment:
    """Assigns a TPU's cores to replicas, as blocks of neighbouring chips."""
    mesh = [int(size) for size in topology.mesh_shape]
    shape = computation_shape(layout.num_cores_per_replica, mesh)
    try:
        return tf.tpu.experimental.DeviceAssignment.build(
            topology, computation_shape=shape, num_replicas=layout.num_replicas
        )
    except ValueError as error:
        raise ValueError(
            f"{layout.num_replicas} replicas of num_cores_per_replica={layout.num_cores_per_replica} "
            f"cores, as blocks of {_by(shape)}, do not fit into the TPU's topology of {_by(mesh)}: use a "
            f"larger TPU, or fewer cores for each. ({error})"
        ) from error


def computation_shape(cores: int, mesh: list[int]) -> list[int]:
    """Returns the block of a mesh that one replica fills."""
    # For chips of two cores the block is as in the original: both cores of a chip first, then chips in the shape of one
    # square or two. If the mesh is too narrow for that, the block is longer.
    block = [1, 1, 1, math.gcd(cores, mesh[-1])]
    while math.prod(block) < cores:
        # As in the original, the second axis grows first, then the two alternate: 1x1, 1x2, 2x2, 4x2 chips. The third
        # grows only if the mesh is too narrow for both.
        first = 1 if block[1] < block[0] or block[:2] == [1, 1] else 0
        order = [first, 1 - first, 2]
        grown = next((axis for axis in order if 2 * block[axis] <= mesh[axis]), None)
        if grown is None:
            raise ValueError(
                f"num_cores_per_replica={cores} is a larger block than the TPU's topology of "
                f"{_by(mesh)} (chips in three dimensions, and the cores of a chip) has: use a larger "
                f"TPU, or at most {math.prod(block)}."
            )
        block[grown] *= 2
    return block


def emulated_topology(layout: CoreLayout) -> tf.tpu.experimental.Topology:
    """Returns the positions of emulated cores."""
    # An emulated host has four chips of two cores, and all chips are in a row: replicas fill them in order, like the
    # hosts of a `CoreLayout`.
    chips_per_host = layout.cores_per_host // _CORES_PER_CHIP
    hosts = -(-layout.num_replicas * layout.num_cores_per_replica // layout.cores_per_host)
    coordinates = [
        [
            [host * chips_per_host + chip, 0, 0, core]
            for chip in range(chips_per_host)
            for core in range(_CORES_PER_CHIP)
        ]
        for host in range(hosts)
    ]
    return tf.tpu.experimental.Topology(
        mesh_shape=[hosts * chips_per_host, 1, 1, _CORES_PER_CHIP], device_coordinates=coordinates
    )


def _by(sizes: list[int]) -> str:
    return "x".join(map(str, sizes))
