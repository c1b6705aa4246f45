"""A network of tf-slim in the model_fn of a TPUEstimator, with its losses and regularizers.

Words: a folder, the number of cores, the network.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf
import tf_slim as slim
from tf_slim.nets import resnet_utils, resnet_v2

from tests.programs.drivers.calls import Calls, run_config

FOLDER, CORES, NETWORK = sys.argv[1], int(sys.argv[2]), sys.argv[3]
BATCH, CLASSES = 16, 3
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, CLASSES, 32)
NOISE = RANDOM.normal(size=(32, 16, 16, 3))
IMAGES = (NOISE + LABELS[:, None, None, None]).astype(np.float32)


def convolutions(images, training):
    """A few layers, each of which reads its defaults from an arg_scope."""
    normal = {"is_training": training, "decay": 0.9, "updates_collections": tf.GraphKeys.UPDATE_OPS}
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        normalizer_fn=slim.batch_norm,
        normalizer_params=normal,
        weights_regularizer=slim.l2_regularizer(1e-4),
    ):
        net = slim.repeat(images, 2, slim.conv2d, 4, [3, 3], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.separable_conv2d(net, 8, [3, 3], 1, scope="conv2")
        net = slim.dropout(slim.flatten(net), 0.8, is_training=training)
        return slim.fully_connected(net, CLASSES, activation_fn=None, normalizer_fn=None)


def resnet(images, training):
    """Two blocks of its ResNet V2."""
    blocks = [
        resnet_v2.resnet_v2_block("block1", base_depth=2, num_units=1, stride=2),
        resnet_v2.resnet_v2_block("block2", base_depth=2, num_units=1, stride=1),
    ]
    with slim.arg_scope(resnet_utils.resnet_arg_scope(batch_norm_decay=0.9)):
        net, _ = resnet_v2.resnet_v2(
            images, blocks, CLASSES, is_training=training, include_root_block=False
        )
    return tf.squeeze(net, [1, 2])


def model_fn(features, labels, mode, params):
    training = mode == tf.estimator.ModeKeys.TRAIN
    logits = {"convolutions": convolutions, "resnet": resnet}[NETWORK](features["image"], training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"probabilities": tf.nn.softmax(logits)}
        outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
        return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions, export_outputs=outputs)
    slim.losses.sparse_softmax_cross_entropy(logits, labels)
    loss = tf.losses.get_total_loss()
    train_op = None
    if training:
        optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
        if CORES:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        train_op = slim.learning.create_train_op(
            loss, optimizer, global_step=tf.train.get_global_step(), summarize_gradients=False
        )

    def metric_fn(labels, logits):
        return {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}

    metrics = (metric_fn, [labels, logits])
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


def rows(params):
    data = tf.data.Dataset.from_tensor_slices(({"image": IMAGES}, LABELS)).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


def rows_once(params):
    data = tf.data.Dataset.from_tensor_slices({"image": IMAGES})
    return data.batch(params["batch_size"], drop_remainder=True)


def receiver():
    image = tf.placeholder(tf.float32, [None, 16, 16, 3])
    return tf.estimator.export.ServingInputReceiver({"image": image}, {"image": image})


def make():
    return tf.estimator.tpu.TPUEstimator(
        model_fn,
        config=run_config(tf.estimator.tpu, FOLDER, CORES),
        use_tpu=CORES > 0,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


calls = Calls(make)
calls.train_and_resume(rows)
calls.evaluate(rows, steps=2, names=["accuracy"])
calls.predict(rows_once, rows=32)
answers = calls.export(receiver, {"image": IMAGES[:3]})
np.testing.assert_allclose(answers["probabilities"].sum(axis=1), 1.0, rtol=1e-5)
calls.finish()
