"""A model_fn that trains in seconds on the transformed taxi data of the tfx wheel."""

from __future__ import annotations

import collections

import tensorflow as tf

from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

LABEL = "tips_xf"
DENSE = ("trip_miles_xf", "fare_xf", "trip_seconds_xf")
PAYMENT_VOCABULARY = "vocab_compute_and_apply_vocabulary_vocabulary"

params = {"learning_rate": 0.05, "width": 4}

# How often model_fn was called in this process, by mode.
calls: collections.Counter[str] = collections.Counter()


def model_fn(features, labels, mode, params):
    calls[mode] += 1
    # Vocabulary, and room for the out-of-vocabulary bucket.
    buckets = params["vocabulary_sizes"][PAYMENT_VOCABULARY] + 10
    table = v1.get_variable("payment", [buckets, params["width"]])
    embedded = tf.nn.embedding_lookup(table, features["payment_type_xf"][:, 0])
    dense = tf.concat([tf.reshape(features[name], [-1, 1]) for name in DENSE], axis=1)
    inputs = tf.concat([dense, embedded], axis=1)
    kernel = v1.get_variable("kernel", [inputs.shape[1], 1])
    bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
    logits = tf.matmul(inputs, kernel) + bias
    probabilities = tf.sigmoid(logits)
    if mode == "infer":
        return tpu.TPUEstimatorSpec(
            mode=mode, predictions={"probabilities": probabilities, "logits": logits}
        )
    labels = tf.cast(tf.reshape(labels, [-1, 1]), tf.float32)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "eval":
        return tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(_metrics, [labels, probabilities])
        )
    optimizer = v1.train.AdagradOptimizer(params["learning_rate"])
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def _metrics(labels, probabilities):
    return {
        "accuracy": v1.metrics.accuracy(labels, tf.round(probabilities)),
        "label_mean": v1.metrics.mean(labels),
    }
