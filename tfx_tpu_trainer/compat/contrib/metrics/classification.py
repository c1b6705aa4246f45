"""Accuracy, confusions and F1 of classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


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
