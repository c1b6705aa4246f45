from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from tests.bad_input import row
from tfx_tpu_trainer.estimator.tpu._device_assignment import assign_cores, computation_shape
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout


@pytest.mark.parametrize(
    ("cores", "block"),
    [
        (1, [1, 1, 1, 1]),
        (2, [1, 1, 1, 2]),
        (4, [1, 2, 1, 2]),
        (8, [2, 2, 1, 2]),
        (16, [4, 2, 1, 2]),
        (32, [4, 4, 1, 2]),
        (64, [8, 4, 1, 2]),
        (128, [8, 8, 1, 2]),
    ],
)
@pytest.mark.behaviour(102)
def test_blocks_are_the_originals_where_chips_have_two_cores(cores, block):
    assert computation_shape(cores, [16, 16, 1, 2]) == block


@pytest.mark.parametrize(
    ("cores", "mesh", "block"),
    [
        (4, [2, 2, 1, 1], [2, 2, 1, 1]),
        (8, [2, 2, 2, 1], [2, 2, 2, 1]),
        (4, [4, 1, 1, 2], [2, 1, 1, 2]),
        (8, [1, 8, 1, 1], [1, 8, 1, 1]),
    ],
)
def test_blocks_fit_other_meshes(cores, mesh, block):
    assert computation_shape(cores, mesh) == block


def topology_of(*mesh: int) -> tf.tpu.experimental.Topology:
    coordinates = [list(place) for place in itertools.product(*map(range, mesh))]
    return tf.tpu.experimental.Topology(mesh_shape=list(mesh), device_coordinates=[coordinates])


def test_replicas_share_out_all_cores():
    layout = CoreLayout(4, 2, model_parallelism=True)
    assignment = assign_cores(layout, topology_of(2, 2, 1, 2))
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (4, 2)
    cores = {tuple(core) for replica in assignment.core_assignment for core in replica.tolist()}
    assert len(cores) == 8
    # Both cores of a replica are on one chip.
    for replica in assignment.core_assignment.tolist():
        assert replica[0][:3] == replica[1][:3]


@row(
    "estimator",
    "8 replicas of 2 cores on a TPU of 8 cores",
    "8 replicas of num_cores_per_replica=2 cores, as blocks of 1x1x1x2, do not fit",
    "topology of 2x2x1x2: use a larger TPU",
)
def test_more_replicas_than_fit(refused):
    with refused():
        assign_cores(CoreLayout(8, 2, model_parallelism=True), topology_of(2, 2, 1, 2))
