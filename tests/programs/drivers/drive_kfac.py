"""K-FAC in a model_fn: curvature from each core's rows; it sums over cores by itself.

Words: a folder, the number of cores.
"""

import sys

import kfac
import tensorflow.compat.v1 as tf

from tests.programs.drivers import models

FOLDER, CORES = sys.argv[1], int(sys.argv[2])
# As its own examples for TPUs set it.
kfac.utils.set_global_constants(posdef_inv_method="cholesky")


def model_fn(features, labels, mode, params):
    with tf.variable_scope("layer"):
        layer = tf.layers.Dense(2)
        logits = layer(features["x"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"probabilities": tf.nn.softmax(logits)})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        collection = kfac.LayerCollection()
        collection.register_fully_connected((layer.kernel, layer.bias), features["x"], logits)
        collection.register_softmax_cross_entropy_loss(logits, seed=1)
        optimizer = kfac.PeriodicInvCovUpdateKfacOpt(
            learning_rate=0.01,
            damping=0.1,
            cov_ema_decay=0.9,
            invert_every=2,
            cov_update_every=1,
            layer_collection=collection,
            placement_strategy="replica_round_robin" if CORES else None,
        )
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    metrics = (
        lambda labels, logits: {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))},
        [labels, logits],
    )
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


models.all_calls(
    model_fn,
    FOLDER,
    CORES,
    labels=models.CLASSES,
    unset=["KFAC/prev_loss", "KFAC/qmodel_", "KFAC/rho"],
)
