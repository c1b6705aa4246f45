"""Accuracy, confusions and F1 of classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def accuracy(
    predictions: Any, labels: Any, weights: Any = None, name: str | None = None
) -> tf.Tensor:
    """Computes the accuracy of one batch.

    Args:
        predictions: Classes: integers, strings or booleans.
        labels: Of the same shape and type.
        weights: A weight for each. Defaults to `None`, all 1.
        name: The ops' name scope. Defaults to `None`, `accuracy`.

    Returns:
        A scalar.

    Raises:
        ValueError: If the types differ, or are floats.
    """
    with v1.name_scope(name, "accuracy", [predictions, labels]):
        predictions, labels = tf.convert_to_tensor(predictions), tf.convert_to_tensor(labels)
        if predictions.dtype != labels.dtype or labels.dtype.is_floating:
            raise ValueError(
                "accuracy takes predictions and labels of one type, and no floats; got "
                f"{predictions.dtype.name} and {labels.dtype.name}."
            )
        correct = tf.cast(tf.equal(predictions, labels), tf.float32)
        if weights is None:
            return tf.reduce_mean(correct)
        weights = tf.cast(weights, tf.float32)
        total = tf.reduce_sum(weights * tf.ones_like(correct))
        return tf.reduce_sum(correct * weights) / total


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: int | None = None,
    dtype: Any = tf.int32,
    name: str | None = None,
    weights: Any = None,
) -> tf.Tensor:
    """Counts how often each class was taken for each, in one batch.

    Args:
        labels: Classes, a row of integers.
        predictions: Classes, as many.
        num_classes: How many there are. Defaults to `None`, those that occur.
        dtype: The counts' type. Defaults to int32.
        name: The ops' name scope. Defaults to `None`.
        weights: A weight for each. Defaults to `None`, all 1.

    Returns:
        A matrix: a row for each label, a column for each prediction.
    """
    return v1.confusion_matrix(labels, predictions, num_classes, dtype, name, weights)


def f1_score(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    metrics_collections: Any = None,
    updates_collections: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Computes the best F1 score over thresholds, over all batches.

    Args:
        labels: Booleans.
        predictions: Probabilities, of the same shape.
        weights: A weight for each. Defaults to `None`, all 1.
        num_thresholds: How many thresholds between 0 and 1. Defaults to 200.
        metrics_collections: Collections of the value. Defaults to `None`.
        updates_collections: Collections of the update op. Defaults to `None`.
        name: The variable scope. Defaults to `None`, `f1`.

    Returns:
        The value, and the update op.
    """
    with v1.variable_scope(name, "f1", [labels, predictions, weights]):
        tiny = 1e-7
        inner = [(at + 1.0) / (num_thresholds - 1) for at in range(num_thresholds - 2)]
        thresholds = [0.0 - tiny, *inner, 1.0 + tiny]
        kinds = [
            kind(labels, predictions, thresholds, weights)
            for kind in (
                v1.metrics.true_positives_at_thresholds,
                v1.metrics.false_positives_at_thresholds,
                v1.metrics.false_negatives_at_thresholds,
            )
        ]

        def best(which: int, label: str) -> tf.Tensor:
            hits, alarms, misses = (kind[which] for kind in kinds)
            precision = hits / (1e-7 + hits + alarms)
            recall = hits / (1e-7 + hits + misses)
            scores = 2.0 * precision * recall / (precision + recall + 1e-7)
            return tf.reduce_max(scores, name=label)

        value, update = best(0, "value"), best(1, "update_op")
        if metrics_collections:
            v1.add_to_collections(metrics_collections, value)
        if updates_collections:
            v1.add_to_collections(updates_collections, update)
        return value, update
