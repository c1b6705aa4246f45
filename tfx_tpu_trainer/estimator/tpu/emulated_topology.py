"""Where the replicas of emulated cores would stand on a TPU."""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.engine.feeding.core_layout import CoreLayout

_CORES_PER_CHIP = 2


def emulated_device_assignment(layout: CoreLayout) -> tf.tpu.experimental.DeviceAssignment:
    """Returns the assignment of replicas to cores.

    An emulated host has four chips of two cores, and all chips stand in a row: replicas fill them
    in their order, as they do the hosts of a `CoreLayout`.

    Args:
        layout: Replicas, cores and hosts.

    Returns:
        What `tf.tpu.experimental.DeviceAssignment.build` makes of such a system.
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
    topology = tf.tpu.experimental.Topology(
        mesh_shape=[hosts * chips_per_host, 1, 1, _CORES_PER_CHIP],
        device_coordinates=coordinates,
    )
    cores = layout.num_cores_per_replica
    shape = [max(1, cores // _CORES_PER_CHIP), 1, 1, min(cores, _CORES_PER_CHIP)]
    return tf.tpu.experimental.DeviceAssignment.build(
        topology, computation_shape=shape, num_replicas=layout.num_replicas
    )
