"""TensorFlow Probability in a model_fn: a regression whose output is a distribution, and a latent of an autoencoder.

Words: a folder, the number of cores.
"""

import sys

import tensorflow.compat.v1 as tf
import tensorflow_probability as tfp

from tests.programs.drivers import models

FOLDER, CORES = sys.argv[1], int(sys.argv[2])


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dense(features["x"], 8, tf.nn.relu)
    location, scale = tf.split(tf.layers.dense(hidden, 4), 2, axis=1)
    posterior = tfp.distributions.MultivariateNormalDiag(location, tf.nn.softplus(scale) + 1e-3)
    prior = tfp.distributions.MultivariateNormalDiag(tf.zeros([2]), tf.ones([2]))
    code = posterior.mean() if mode != tf.estimator.ModeKeys.TRAIN else posterior.sample(seed=1)
    found = tfp.distributions.Normal(tf.layers.dense(code, 1), 1.0)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"mean": found.mean(), "95 %": found.quantile(0.95)})
    divergence = tfp.distributions.kl_divergence(posterior, prior)
    loss = tf.reduce_mean(divergence) - tf.reduce_mean(found.log_prob(labels))
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.AdamOptimizer(0.01)
        if CORES:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = (lambda divergence: {"divergence": tf.metrics.mean(divergence)}, [divergence])
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


models.all_calls(model_fn, FOLDER, CORES)
