"""The gradient that a model's optimizer takes with respect to its inputs."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.embedding.gradient_tap import GradientTap
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1

VALUE = np.float32([[1, 2], [3, 4]])


def _model(tap: GradientTap, minimize) -> None:
    x = tap.tap("x", tf.constant(VALUE))
    weights = v1.get_variable("weights", initializer=np.float32([[2], [3]]))
    minimize(tf.reduce_sum(tf.matmul(x, weights) ** 2))


def _gradient(minimize) -> np.ndarray:
    with fresh_graph(), v1.Session() as session:
        tap = GradientTap()
        _model(tap, minimize)
        gradient = tap.close()["x"]
        session.run(v1.global_variables_initializer())
        return session.run(gradient)


EXPECTED = 2 * (VALUE @ [[2], [3]]) * np.float32([[2, 3]])


def test_the_gradient_of_a_loss():
    got = _gradient(v1.train.GradientDescentOptimizer(0.1).minimize)
    np.testing.assert_allclose(got, EXPECTED, rtol=1e-6)


def test_b372_scaled_as_the_model_scales_it():
    with tf_private.replicas(4):
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        got = _gradient(lambda loss: optimizer.compute_gradients(loss))
    np.testing.assert_allclose(got, EXPECTED / 4, rtol=1e-6)


def test_a_model_may_clip_every_gradient_one_by_one():
    def minimize(loss):
        optimizer = v1.train.AdamOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        optimizer.apply_gradients([(tf.clip_by_norm(g, 1.0), v) for g, v in pairs])

    np.testing.assert_allclose(_gradient(minimize), EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("make", [v1.train.AdamOptimizer, v1.train.AdagradOptimizer])
def test_the_stand_in_is_neither_saved_nor_trained_on(make):
    with fresh_graph():
        tap = GradientTap()
        _model(tap, make(0.1).minimize)
        tap.close()
        assert [v.op.name for v in v1.trainable_variables()] == ["weights"]
        assert not [v.op.name for v in v1.global_variables() if "tap" in v.op.name]
        assert [v.op.name for v in v1.local_variables() if "tap" in v.op.name]


def test_a_tensor_that_is_not_used_has_zeros_and_a_warning(caplog):
    with fresh_graph(), v1.Session() as session:
        tap = GradientTap()
        tap.tap("idle", tf.constant(VALUE))
        _model(tap, v1.train.GradientDescentOptimizer(0.1).minimize)
        with caplog.at_level(logging.WARNING, logger="tensorflow"):
            gradients = tap.close()
        assert session.run(gradients["idle"]).tolist() == [[0, 0], [0, 0]]
    assert "embeddings of ['idle'] have undefined gradients" in caplog.text


def test_through_a_loop():
    def minimize(loss):
        doubled = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, 2 * x), (0, loss))[1]
        v1.train.GradientDescentOptimizer(0.1).minimize(doubled)

    np.testing.assert_allclose(_gradient(minimize), 8 * EXPECTED, rtol=1e-6)
