"""Modules of Sonnet 1 in a model_fn: an LSTM over the columns of a row.

Words: a folder, the number of cores.
"""

import sys

import sonnet as snt
import tensorflow.compat.v1 as tf

from tests.programs.drivers import models

FOLDER, CORES = sys.argv[1], int(sys.argv[2])


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    core = snt.LSTM(8, name="core")
    inputs = snt.BatchApply(snt.Linear(6, name="inputs"))(features["x"][:, :, None])
    outputs, _ = tf.nn.dynamic_rnn(core, inputs, dtype=tf.float32)
    last = snt.LayerNorm()(outputs[:, -1])
    hidden = snt.BatchNorm(scale=True)(last, is_training=training)
    mlp = snt.nets.MLP(
        [8, 1],
        initializers={"w": tf.initializers.truncated_normal(stddev=0.3)},
        regularizers={"w": lambda weights: 1e-4 * tf.nn.l2_loss(weights)},
    )
    found = mlp(hidden)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"y": found})
    loss = tf.losses.mean_squared_error(labels, found) + tf.losses.get_regularization_loss()
    train_op = None
    if training:
        optimizer = tf.train.AdamOptimizer(0.01)
        if CORES:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = (
        lambda y, found: {"error": tf.metrics.mean_absolute_error(y, found)},
        [labels, found],
    )
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


models.all_calls(model_fn, FOLDER, CORES)
