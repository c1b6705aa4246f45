"""Defines a small convolutional network for 8 by 8 digits, as a TF1-style model_fn for `TpuTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipelines.digits.transform.preprocessing import SIDE
from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.export import PredictOutput
from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec

DIGITS = 10


def model_fn(
    features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]
) -> Any:
    """Builds the graph of one mode.

    Args:
        features: `pixels`, float32 [batch, 64] between 0 and 1.
        labels: The digits, int64 [batch, 1]; None in predict.
        mode: One of `ModeKeys`.
        params: The fields of `DigitsModelSettings`, and those that `TPUEstimator` adds.

    Returns:
        The `TPUEstimatorSpec` of the mode.
    """
    logits = convolutions(features["pixels"], params)
    if mode == ModeKeys.PREDICT:
        predictions = {"digit": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
        return TPUEstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={"serving_default": PredictOutput(predictions)},
        )

    digits = tf.reshape(labels, [-1])
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels=digits, logits=logits)
    if mode == ModeKeys.EVAL:
        return TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, {"labels": digits, "logits": logits})
        )

    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    if params.get("use_tpu"):
        optimizer = CrossShardOptimizer(optimizer)
    step = tf.compat.v1.train.get_or_create_global_step()
    return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))


def metric_fn(labels: tf.Tensor, logits: tf.Tensor) -> dict[str, Any]:
    """Computes the evaluation's metrics, on the host.

    Args:
        labels: The digits, [batch].
        logits: [batch, 10].

    Returns:
        (value, update) pairs by name.
    """
    predicted = tf.argmax(logits, axis=1)
    return {
        "accuracy": tf.compat.v1.metrics.accuracy(labels, predicted),
        "mean_per_class_accuracy": tf.compat.v1.metrics.mean_per_class_accuracy(
            labels, predicted, DIGITS
        ),
    }


def convolutions(pixels: tf.Tensor, params: Mapping[str, Any]) -> tf.Tensor:
    """Applies two convolutions, a pooling and two dense layers; returns the logits, [batch, 10]."""
    filters = params["filters"]
    images = tf.reshape(pixels, [-1, SIDE, SIDE, 1])
    hidden = tf.nn.relu(convolution(images, filters, name="convolution_0"))
    hidden = tf.nn.relu(convolution(hidden, 2 * filters, name="convolution_1"))
    hidden = tf.nn.max_pool2d(hidden, ksize=2, strides=2, padding="SAME")
    flat = tf.reshape(hidden, [-1, (SIDE // 2) ** 2 * 2 * filters])
    hidden = tf.nn.relu(dense_layer(flat, params["hidden_units"], name="hidden"))
    return dense_layer(hidden, DIGITS, name="logits")


def convolution(images: tf.Tensor, filters: int, *, name: str) -> tf.Tensor:
    """Applies a 3 by 3 convolution with a bias; returns [batch, height, width, filters]."""
    kernel = tf.compat.v1.get_variable(
        f"{name}/kernel",
        [3, 3, images.shape[3], filters],
        initializer=tf.compat.v1.glorot_uniform_initializer(),
    )
    bias = tf.compat.v1.get_variable(
        f"{name}/bias", [filters], initializer=tf.compat.v1.zeros_initializer()
    )
    return tf.nn.conv2d(images, kernel, strides=1, padding="SAME") + bias


def dense_layer(inputs: tf.Tensor, units: int, *, name: str) -> tf.Tensor:
    """Applies a dense layer to inputs [batch, n]; returns [batch, units]."""
    kernel = tf.compat.v1.get_variable(
        f"{name}/kernel",
        [inputs.shape[1], units],
        initializer=tf.compat.v1.glorot_uniform_initializer(),
    )
    bias = tf.compat.v1.get_variable(
        f"{name}/bias", [units], initializer=tf.compat.v1.zeros_initializer()
    )
    return tf.matmul(inputs, kernel) + bias
