import itertools

import pytest
import tensorflow as tf

from tests.bad_input import row
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.layout import (
    BatchSizes,
    CoreLayout,
    InputMode,
    assign_cores,
    batch_sizes,
    computation_shape,
    number_of_sources,
)


@pytest.mark.parametrize(
    ("replicas", "cores", "hosts"),
    [(1, 1, 1), (8, 1, 1), (9, 1, 2), (16, 1, 2), (4, 4, 2), (64, 2, 16)],
)
def test_hosts_have_eight_cores(replicas, cores, hosts):
    assert CoreLayout(replicas, cores).num_hosts == hosts
    assert CoreLayout(replicas, cores, one_host=True).num_hosts == 1
    assert CoreLayout(replicas, cores, one_host=True).replicas_per_host == replicas


@pytest.mark.parametrize("given", [0, 7, "PER_HOST_V2", [2]])
@row(
    "estimator",
    "`TPUConfig(per_host_input_for_training=7)`, on cores",
    "per_host_input_for_training=",
    "is not one of InputPipelineConfig; give PER_SHARD_V1 (1), PER_HOST_V1 (2), ",
)
def test_no_other_way_of_the_input_is_taken(given, refused):
    with refused(ValueError):
        InputMode(given)


def test_replicas_that_do_not_spread_evenly_are_refused():
    with pytest.raises(
        ValueError, match="9 replicas of 1 cores can't be spread evenly over 2 hosts"
    ):
        _ = CoreLayout(9).replicas_per_host


@pytest.mark.parametrize(
    ("mode", "sizes", "calls"),
    [
        (InputMode.PER_SHARD_V1, (4, 4), 16),
        (InputMode.PER_HOST_V1, (32, 4), 2),
        (InputMode.PER_HOST_V2, (4, 4), 2),
        (InputMode.BROADCAST, (64, 64), 1),
        (InputMode.SLICED, (64, 4), 1),
    ],
)
@pytest.mark.behaviour(73, 75, 76, 77, 78)
def test_batch_sizes_and_calls(mode, sizes, calls):
    assert batch_sizes(mode, CoreLayout(16), 64) == BatchSizes(*sizes)
    assert number_of_sources(mode, CoreLayout(16)) == calls


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


@pytest.mark.parametrize(
    ("mode", "invocation", "host", "deployment"),
    [
        (InputMode.PER_HOST_V1, 1, 1, (1, 2, 8)),
        (InputMode.PER_HOST_V2, 1, 1, (1, 2, 8)),
        (InputMode.PER_SHARD_V1, 11, 1, (11, 16, 1)),
        (InputMode.PER_SHARD_V1, 7, 0, (7, 16, 1)),
        (InputMode.BROADCAST, 0, 0, (0, 1, 16)),
        (InputMode.SLICED, 0, 0, (0, 1, 16)),
    ],
)
@pytest.mark.behaviour(99, 100)
def test_layout_and_deployment(mode, invocation, host, deployment):
    context = TPUContext(CoreLayout(16), mode, invocation=invocation)
    assert (context.num_replicas, context.num_hosts) == (16, 2)
    assert context.num_of_replicas_per_host == 8
    assert context.current_host == host
    device, *rest = context.current_input_fn_deployment()
    assert device == "/replica:0/task:0/device:CPU:0"
    assert tuple(rest) == deployment


@pytest.mark.behaviour(104)
def test_the_device_of_a_replica():
    context = TPUContext(CoreLayout(16), InputMode.PER_HOST_V1)
    assert context.device_for_replica(3) == ("/task:0/device:CPU:0", 3)
    assert context.device_for_replica(9) == ("/task:1/device:CPU:0", 1)


@pytest.mark.behaviour(104)
def test_the_hosts_of_a_job():
    context = TPUContext(CoreLayout(16), InputMode.PER_HOST_V1, invocation=1, job="worker")
    assert context.current_input_fn_deployment()[0] == "/job:worker/task:1/device:CPU:0"
    assert context.device_for_replica(9) == ("/job:worker/task:1/device:CPU:0", 1)


@pytest.mark.parametrize(
    ("replicas", "width", "devices"),
    [
        (3, 1, [(0, 0), (0, 1), (0, 2)]),
        (6, 2, [(0, 0), (0, 2), (0, 4), (0, 6), (1, 0), (1, 2)]),
        (3, 4, [(0, 0), (0, 4), (1, 0)]),
        (2, 16, [(0, 0), (2, 0)]),
        (2, 128, [(0, 0), (16, 0)]),
    ],
)
@pytest.mark.behaviour(102)
def test_model_parallelism_has_a_device_assignment(replicas, width, devices):
    layout = CoreLayout(replicas, width, model_parallelism=True)
    context = TPUContext(layout, InputMode.PER_HOST_V2)
    assignment = context.device_assignment
    assert isinstance(assignment, tf.tpu.experimental.DeviceAssignment)
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (replicas, width)
    expected = [(f"/task:{host}/device:CPU:0", ordinal) for host, ordinal in devices]
    assert [context.device_for_replica(replica) for replica in range(replicas)] == expected
    assert expected[-1] == (
        assignment.host_device(replica=replicas - 1),
        assignment.tpu_ordinal(replica=replicas - 1),
    )


@pytest.mark.behaviour(89, 100)
def test_each_replica_wider_than_a_host_has_an_input_of_its_own():
    layout = CoreLayout(2, 16, model_parallelism=True)
    for invocation, host in ((0, 0), (1, 2)):
        context = TPUContext(layout, InputMode.PER_HOST_V2, invocation=invocation)
        assert context.current_host == host
        assert context.current_input_fn_deployment()[1:] == (invocation, 2, 1)
