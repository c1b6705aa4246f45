"""Which cores of a TPU each replica of a model runs on: `TPUConfig(num_cores_per_replica=...)`."""

from __future__ import annotations

import math

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout

_CORES_PER_CHIP = 2


def assign_cores(
    layout: CoreLayout, topology: tf.tpu.experimental.Topology
) -> tf.tpu.experimental.DeviceAssignment:
    """Assigns the cores of a TPU to replicas, each a block of neighbouring chips."""
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
    """Returns the block of a mesh that a replica fills.

    It is the original's where chips have two cores: both cores of a chip first, then chips in the shape
    of a square or of two. Where the mesh is too narrow for that, the block is longer.
    """
    block = [1, 1, 1, math.gcd(cores, mesh[-1])]
    while math.prod(block) < cores:
        # Of a line of two chips the original makes a square, of a square a line of two squares.
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
    """Returns where emulated cores are.

    An emulated host has four chips of two cores, and all chips stand in a row: replicas fill them
    in their order, as they do the hosts of a `CoreLayout`.
    """
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
        mesh_shape=[hosts * chips_per_host, 1, 1, _CORES_PER_CHIP],
        device_coordinates=coordinates,
    )


def _by(sizes: list[int]) -> str:
    return "x".join(map(str, sizes))
