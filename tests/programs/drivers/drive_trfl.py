"""TRFL's losses in a model_fn: action values, learned from transitions.

Words: a folder, the number of cores.
"""

import sys

import tensorflow.compat.v1 as tf
import trfl

from tests.programs.drivers import models

FOLDER, CORES = sys.argv[1], int(sys.argv[2])
ACTIONS = 3


def model_fn(features, labels, mode, params):
    network = tf.make_template("network", lambda x: tf.layers.dense(x, ACTIONS))
    values = network(features["x"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"values": values, "action": tf.argmax(values, axis=1)})
    actions = tf.cast(tf.abs(labels[:, 0]), tf.int32) % ACTIONS
    learned, extra = trfl.double_qlearning(
        values,
        actions,
        labels[:, 0],
        0.9 * tf.ones_like(labels[:, 0]),
        network(-features["x"]),
        network(features["x"] + 1.0),
    )
    loss = tf.reduce_mean(learned)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.RMSPropOptimizer(0.01)
        if CORES:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = (lambda error: {"error": tf.metrics.mean(error)}, [extra.td_error])
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


models.all_calls(model_fn, FOLDER, CORES)
