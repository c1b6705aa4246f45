"""TensorFlow Constrained Optimization in a model_fn: few errors, subject to a recall.

Words: a folder, the number of cores.
"""

import sys

import tensorflow.compat.v1 as tf
import tensorflow_constrained_optimization as tfco

from tests.programs.drivers import models

FOLDER, CORES = sys.argv[1], int(sys.argv[2])


def model_fn(features, labels, mode, params):
    scores = tf.layers.dense(tf.layers.dense(features["x"], 8, tf.nn.relu), 1)[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"score": scores})
    truth = tf.cast(labels, tf.float32)
    context = tfco.rate_context(scores, truth)
    problem = tfco.RateMinimizationProblem(tfco.error_rate(context), [tfco.recall(context) >= 0.9])
    loss = tf.losses.sigmoid_cross_entropy(truth, scores)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tfco.ProxyLagrangianOptimizerV1(
            tf.train.AdagradOptimizer(0.1), num_constraints=problem.num_constraints
        )
        train_op = optimizer.minimize(problem, global_step=tf.train.get_global_step())
    metrics = (
        lambda truth, scores: {"recall": tf.metrics.recall(truth, scores > 0)},
        [truth, scores],
    )
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


models.all_calls(model_fn, FOLDER, CORES, labels=models.CLASSES)
