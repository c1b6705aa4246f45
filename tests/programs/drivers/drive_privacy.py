"""TensorFlow Privacy's optimizer in a model_fn: it clips the gradient of each row and adds noise.

Words: a folder, the number of cores.
"""

# TensorFlow of its time had imported it, and the package says `import distutils` only.
import distutils.version  # noqa: F401
import sys

# As its own programs do, which want parts of the package only.
sys.skip_tf_privacy_import = True

import tensorflow.compat.v1 as tf  # noqa: E402
from tensorflow_privacy.privacy.optimizers import dp_optimizer  # noqa: E402

from tests.programs.drivers import models  # noqa: E402

FOLDER, CORES = sys.argv[1], int(sys.argv[2])


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dense(features["x"], 8, tf.nn.relu)
    logits = tf.layers.dense(hidden, 2)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"probabilities": tf.nn.softmax(logits)})
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = dp_optimizer.DPGradientDescentGaussianOptimizer(
            l2_norm_clip=1.0, noise_multiplier=0.5, num_microbatches=2, learning_rate=0.05
        )
        if CORES:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss=each, global_step=tf.train.get_global_step())
    metrics = (
        lambda labels, logits: {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))},
        [labels, logits],
    )
    loss = tf.reduce_mean(each)
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


models.all_calls(model_fn, FOLDER, CORES, labels=models.CLASSES)
