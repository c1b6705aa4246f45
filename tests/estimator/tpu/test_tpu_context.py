from __future__ import annotations

import pytest

from tfx_tpu_trainer.engine.feeding.core_layout import CoreLayout, InputMode
from tfx_tpu_trainer.estimator.tpu.tpu_context import TPUContext


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
def test_b99_b100_layout_and_deployment(mode, invocation, host, deployment):
    context = TPUContext(CoreLayout(16), mode, invocation=invocation)
    assert (context.num_replicas, context.num_hosts) == (16, 2)
    assert context.num_of_replicas_per_host == 8
    assert context.current_host == host
    device, *rest = context.current_input_fn_deployment()
    assert device == f"/task:{host}/device:CPU:0"
    assert tuple(rest) == deployment


def test_b101_model_fn_has_no_deployment():
    context = TPUContext(CoreLayout(2), InputMode.PER_HOST_V1)
    with pytest.raises(RuntimeError, match="must not be called from model_fn"):
        context.current_input_fn_deployment()
    with pytest.raises(RuntimeError, match="must not be called from model_fn"):
        _ = context.current_host


def test_b102_the_device_assignment_is_for_model_fn():
    assert TPUContext(CoreLayout(2), InputMode.PER_HOST_V1).device_assignment is None
    context = TPUContext(CoreLayout(2), InputMode.PER_HOST_V1, invocation=0)
    with pytest.raises(RuntimeError, match="must not be called from input_fn"):
        _ = context.device_assignment


def test_b103_replicas_per_host_under_model_parallelism():
    context = TPUContext(CoreLayout(2, 4), InputMode.PER_HOST_V1)
    with pytest.raises(ValueError, match="not supported for model_parallelism"):
        _ = context.num_of_replicas_per_host


def test_b104_the_device_of_a_replica():
    context = TPUContext(CoreLayout(16), InputMode.PER_HOST_V1)
    assert context.device_for_replica(3) == ("/task:0/device:CPU:0", 3)
    assert context.device_for_replica(9) == ("/task:1/device:CPU:0", 1)
