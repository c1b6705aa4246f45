from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.layout import CoreLayout, InputMode


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


@pytest.mark.behaviour(101)
def test_model_fn_has_no_deployment():
    context = TPUContext(CoreLayout(2), InputMode.PER_HOST_V1)
    with pytest.raises(RuntimeError, match="must not be called from model_fn"):
        context.current_input_fn_deployment()
    with pytest.raises(RuntimeError, match="must not be called from model_fn"):
        _ = context.current_host


@pytest.mark.behaviour(102)
def test_the_device_assignment_is_for_model_fn():
    assert TPUContext(CoreLayout(2), InputMode.PER_HOST_V1).device_assignment is None
    context = TPUContext(CoreLayout(2), InputMode.PER_HOST_V1, invocation=0)
    with pytest.raises(RuntimeError, match="must not be called from input_fn"):
        _ = context.device_assignment


@pytest.mark.behaviour(103)
def test_replicas_per_host_under_model_parallelism():
    layout = CoreLayout(2, 1, model_parallelism=True)
    context = TPUContext(layout, InputMode.PER_HOST_V1)
    with pytest.raises(ValueError, match="not supported for model_parallelism"):
        _ = context.num_of_replicas_per_host


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
