"""A model whose cores read each other's rows, as SimCLR's does, through a whole estimator."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

CORES = 4
ROWS = np.random.default_rng(7).normal(size=(16, 3)).astype(np.float32)
WEIGHTS = np.array([[0.5, -1.0], [0.25, 1.0], [-0.75, 0.5]], np.float32)


def _rows_of_all_cores(rows: tf.Tensor, cores: int) -> tf.Tensor:
    placed = tf.scatter_nd([[xla.replica_id()]], [rows], [cores, *rows.shape.as_list()])
    return tf.reshape(v1.tpu.cross_replica_sum(placed), [-1, *rows.shape.as_list()[1:]])


def _model_fn(features, labels, mode, params):
    del labels
    weights = v1.get_variable("weights", initializer=WEIGHTS)
    rows = tf.matmul(features, weights)
    if mode == "infer":
        number = tf.fill(rows.shape[:1], xla.replica_id())
        return tpu.TPUEstimatorSpec(mode, predictions={"core": number})
    if mode == "eval":
        number = tf.cast(xla.replica_id(), tf.float32) + 0 * rows[:, 0]
        metrics = (lambda number: {"core": v1.metrics.mean(number)}, [number])
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(rows), eval_metrics=metrics)
    rows_of_all = _rows_of_all_cores(rows, params["context"].num_replicas)
    loss = tf.reduce_mean(tf.square(tf.matmul(rows, rows_of_all, transpose_b=True)))
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step())
    )


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    config = tpu.RunConfig(
        master="emulated",
        model_dir=str(tmp_path_factory.mktemp("model")),
        tpu_config=tpu.TPUConfig(num_shards=CORES),
    )
    made = tpu.TPUEstimator(
        _model_fn, config=config, train_batch_size=16, eval_batch_size=8, predict_batch_size=8
    )
    made.train(_input_fn, steps=1)
    return made


def _input_fn(params):
    return (
        tf.data.Dataset.from_tensors((ROWS, np.zeros(16)))
        .unbatch()
        .batch(params["batch_size"], drop_remainder=True)
    )


def test_gradients_of_rows_of_all_cores_are_those_of_the_whole_batch(estimator):
    # The loss of all cores together is the mean over all pairs of rows.
    rows = ROWS @ WEIGHTS
    gradient = ROWS.T @ (4 * (rows @ rows.T) @ rows) / 16**2
    trained = estimator.get_variable_value("weights")
    np.testing.assert_allclose(trained, WEIGHTS - 0.1 * gradient, rtol=1e-4)


def test_rows_know_their_core(estimator):
    predicted = [int(row["core"]) for row in estimator.predict(_input_fn)]
    assert predicted == 2 * [0, 0, 1, 1, 2, 2, 3, 3]
    assert estimator.evaluate(_input_fn, steps=2)["core"] == np.mean(predicted)


def test_a_short_last_batch_is_core_0s(estimator):
    metrics = estimator.evaluate(lambda params: _input_fn(params).unbatch().take(10).batch(8))
    assert metrics["core"] == pytest.approx(12 / 10)
