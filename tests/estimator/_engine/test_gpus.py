from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator._engine.fake_gpu import see_a_gpu
from tfx_tpu_trainer.estimator._engine.gpus import decided_on_cpu, sees_gpus
from tfx_tpu_trainer.estimator._engine.graph_optimizer import optimize_dependencies_only
from tfx_tpu_trainer.estimator._engine.loops.step_loop import repeat_step

v1 = tf.compat.v1

_ON_HOST = "/device:CPU:0"


@pytest.fixture
def gpu(monkeypatch):
    see_a_gpu(monkeypatch)


def _device_of_condition():
    with tf.Graph().as_default(), decided_on_cpu():
        return (tf.constant(1.0) > 0.0).op.device


def test_without_a_gpu_ops_of_conditions_name_no_device():
    assert not sees_gpus()
    assert _device_of_condition() == ""


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_conditions_are_decided_on_the_host():
    assert sees_gpus()
    assert _device_of_condition() == _ON_HOST


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_a_functions_ops_are_fused():
    with tf.Graph().as_default():
        call = tf.function(lambda x: x * 2, autograph=False)(tf.constant(21)).op
        before = call.get_attr("config_proto")
        optimize_dependencies_only(call)
        assert call.get_attr("config_proto") == before


@pytest.mark.usefixtures("gpu")
def test_beside_a_gpu_a_loop_of_steps_looks_at_its_loss_on_the_host():
    with tf.Graph().as_default() as graph:
        losses = tf.constant([1.0, float("inf"), 3.0])
        loss = repeat_step(
            lambda number: tf.gather(losses, number),
            tf.constant(3),
            loss_dtype=tf.float32,
            stop_if_not_finite=True,
        )
        functions = graph.as_graph_def().library.function
        devices = {node.op: node.device for f in functions for node in f.node_def}
        assert devices["IsFinite"] == devices["LogicalAnd"] == _ON_HOST
        with v1.Session() as session:
            assert session.run(loss) == float("inf")
