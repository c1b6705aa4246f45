"""Losses with predictions first and labels second, as `tf.contrib.losses` and slim had them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_LOSSES = v1.GraphKeys.LOSSES

__all__ = [
    "absolute_difference",
    "add_loss",
    "compute_weighted_loss",
    "cosine_distance",
    "get_losses",
    "get_regularization_losses",
    "get_total_loss",
    "log_loss",
    "mean_squared_error",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]


def absolute_difference(
    predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None
) -> tf.Tensor:
    """Adds the mean absolute difference to the losses."""
    return v1.losses.absolute_difference(labels, predictions, weights, scope)


def mean_squared_error(
    predictions: Any, labels: Any = None, weights: Any = 1.0, scope: str | None = None
) -> tf.Tensor:
    """Adds the mean squared difference to the losses."""
    return v1.losses.mean_squared_error(labels, predictions, weights, scope)


def log_loss(
    predictions: Any,
    labels: Any = None,
    weights: Any = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
) -> tf.Tensor:
    """Adds the cross-entropy of probabilities to the losses."""
    return v1.losses.log_loss(labels, predictions, weights, epsilon, scope)


def cosine_distance(
    predictions: Any,
    labels: Any = None,
    axis: int | None = None,
    weights: Any = 1.0,
    scope: str | None = None,
    dim: int | None = None,
) -> tf.Tensor:
    """Adds the cosine distance of vectors of length 1 to the losses."""
    return v1.losses.cosine_distance(
        labels, predictions, dim if axis is None else axis, weights, scope
    )


def softmax_cross_entropy(
    logits: Any,
    onehot_labels: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
) -> tf.Tensor:
    """Adds the cross-entropy of classes to the losses."""
    return v1.losses.softmax_cross_entropy(onehot_labels, logits, weights, label_smoothing, scope)


def sparse_softmax_cross_entropy(
    logits: Any, labels: Any, weights: Any = 1.0, scope: str | None = None
) -> tf.Tensor:
    """Adds the cross-entropy of classes, given by number, to the losses."""
    return v1.losses.sparse_softmax_cross_entropy(labels, logits, weights, scope)


def sigmoid_cross_entropy(
    logits: Any,
    multi_class_labels: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
) -> tf.Tensor:
    """Adds the cross-entropy of classes that do not exclude each other to the losses."""
    return v1.losses.sigmoid_cross_entropy(
        multi_class_labels, logits, weights, label_smoothing, scope
    )


def compute_weighted_loss(losses: Any, weights: Any = 1.0, scope: str | None = None) -> tf.Tensor:
    """Adds the mean of weighted losses to the losses."""
    return v1.losses.compute_weighted_loss(losses, weights, scope)


def add_loss(loss: Any, loss_collection: str | None = _LOSSES) -> None:
    """Adds a loss to the losses."""
    if loss_collection:
        v1.losses.add_loss(loss, loss_collection)


def get_losses(scope: str | None = None, loss_collection: str = _LOSSES) -> list[tf.Tensor]:
    """Returns the losses."""
    return v1.losses.get_losses(scope, loss_collection)


def get_regularization_losses(scope: str | None = None) -> list[tf.Tensor]:
    """Returns the losses of regularizers."""
    return v1.losses.get_regularization_losses(scope)


def get_total_loss(add_regularization_losses: bool = True, name: str = "total_loss") -> tf.Tensor:
    """Returns the sum of the losses."""
    return v1.losses.get_total_loss(add_regularization_losses, name)
