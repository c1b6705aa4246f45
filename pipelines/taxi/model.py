"""Defines a wide-and-deep model of taxi tips as a TF1-style model_fn for `TpuTrainer`.

Everything here also compiles for a TPU: integer ids instead of strings, embeddings as plain
look-ups, no tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipelines.taxi.transform.preprocessing import (
    BUCKETED,
    BUCKETS,
    IDS,
    NUMBERS,
    OOV_BUCKETS,
    VOCABULARIES,
)
from tfx_tpu_trainer.estimator import ModeKeys
from tfx_tpu_trainer.estimator.export import PredictOutput
from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec

# Pairs of ids that the wide half crosses.
CROSSES = (("trip_start_day", "trip_start_hour"), ("payment_type", "pickup_community_area"))


def model_fn(
    features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]
) -> Any:
    """Builds the graph of one mode.

    Args:
        features: Transform's features, each of shape [batch].
        labels: 1 if the tip is more than a fifth of the fare, else 0, int64 [batch]; None in predict.
        mode: One of `ModeKeys`.
        params: The fields of `TaxiModelSettings`, `vocabulary_sizes`, and those that `TPUEstimator` adds.

    Returns:
        The `TPUEstimatorSpec` of the mode.
    """
    logits = wide_and_deep(features, params)
    probability = tf.sigmoid(logits)
    if mode == ModeKeys.PREDICT:
        predictions = {"probability": probability, "logits": logits}
        return TPUEstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={"serving_default": PredictOutput(predictions)},
        )

    targets = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    row_losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    loss = tf.reduce_mean(row_losses)
    if mode == ModeKeys.EVAL:
        return TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [targets, probability, row_losses])
        )

    step = tf.compat.v1.train.get_or_create_global_step()
    rate = tf.compat.v1.train.cosine_decay(params["learning_rate"], step, params["decay_steps"])
    optimizer = tf.compat.v1.train.AdamOptimizer(rate)
    if params.get("use_tpu"):
        optimizer = CrossShardOptimizer(optimizer)
    return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))


def metric_fn(labels: tf.Tensor, probability: tf.Tensor, row_losses: tf.Tensor) -> dict[str, Any]:
    """Computes the evaluation's metrics, on the host.

    Args:
        labels: 0.0 or 1.0, [batch].
        probability: The model's probability of a big tip, [batch].
        row_losses: Each row's cross entropy, [batch].

    Returns:
        (value, update) pairs by name.
    """
    predicted = tf.cast(probability > 0.5, tf.float32)
    return {
        "accuracy": tf.compat.v1.metrics.accuracy(labels, predicted),
        "auc": tf.compat.v1.metrics.auc(
            labels, probability, num_thresholds=1000, summation_method="careful_interpolation"
        ),
        "average_loss": tf.compat.v1.metrics.mean(row_losses),
    }


def wide_and_deep(features: Mapping[str, tf.Tensor], params: Mapping[str, Any]) -> tf.Tensor:
    """Returns the logits, [batch], of a linear model on ids and crosses plus a network on embeddings and numbers."""
    sizes = id_sizes(params["vocabulary_sizes"])
    ids = {name: tf.cast(tf.reshape(features[f"{name}_id"], [-1]), tf.int32) for name in sizes}
    numbers = tf.stack([tf.reshape(features[f"{name}_scaled"], [-1]) for name in NUMBERS], axis=1)

    with tf.compat.v1.variable_scope("wide"):
        wide = dense_layer(numbers, 1, name="numbers")
        for name, size in sizes.items():
            wide += look_up(ids[name], size, 1, name=name, zeros=True)
        for first, second in CROSSES:
            crossed = ids[first] * sizes[second] + ids[second]
            wide += look_up(
                crossed, sizes[first] * sizes[second], 1, name=f"{first}_x_{second}", zeros=True
            )
    with tf.compat.v1.variable_scope("deep"):
        embedded = [
            look_up(ids[name], size, params["embedding_size"], name=name)
            for name, size in sizes.items()
        ]
        hidden = tf.concat([*embedded, numbers], axis=1)
        for layer, units in enumerate(params["hidden_units"]):
            hidden = tf.nn.relu(dense_layer(hidden, units, name=f"hidden_{layer}"))
        deep = dense_layer(hidden, 1, name="logits")
    return tf.squeeze(wide + deep, axis=1)


def id_sizes(vocabulary_sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of ids of each categorical feature, by its raw name."""
    return {
        **{name: vocabulary_sizes[name] + OOV_BUCKETS for name in VOCABULARIES},
        **dict.fromkeys(BUCKETED, BUCKETS + 1),
        **IDS,
    }


def look_up(ids: tf.Tensor, size: int, width: int, *, name: str, zeros: bool = False) -> tf.Tensor:
    """Looks up ids [batch] in a trained table [size, width]; returns [batch, width]."""
    initializer = (
        tf.compat.v1.zeros_initializer()
        if zeros
        else tf.compat.v1.random_normal_initializer(stddev=width**-0.5)
    )
    table = tf.compat.v1.get_variable(f"{name}/table", [size, width], initializer=initializer)
    return tf.gather(table, ids)


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
