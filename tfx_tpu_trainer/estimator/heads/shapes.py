"""Shapes of logits, labels, weights and losses: checked when they are known, else when they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

# How many values of a tensor an error in a session shows.
_SHOWN = 10


def required(
    tensor: tf.Tensor, condition: tf.Tensor, message: str, shown: Mapping[str, Any]
) -> tf.Tensor:
    """Gives a tensor back, once a condition is seen to hold.

    Args:
        tensor: The tensor.
        condition: Scalar bool.
        message: What is wrong if it does not hold.
        shown: Name -> tensor, added to the message.

    Returns:
        The tensor; in a graph, one that depends on the condition.

    Raises:
        ValueError: If it does not hold; in a graph the session raises InvalidArgumentError.
    """
    if tf.executing_eagerly():
        if not condition:
            values = ", ".join(f"{name}: {value.numpy()}" for name, value in shown.items())
            raise ValueError(f"{message} {values}")
        return tensor
    data = [message, *(part for name, value in shown.items() for part in (f"{name}: ", value))]
    check = tf.debugging.Assert(condition, data, summarize=_SHOWN)
    with tf.control_dependencies([check]):
        return tf.identity(tensor)


def check_logits(logits: Any, dimension: int) -> tf.Tensor:
    """Gives logits as float32, of a shape that fits a head.

    Args:
        logits: [D0, ... DN, dimension], of any number type.
        dimension: The last axis that the head needs.

    Returns:
        The logits.

    Raises:
        ValueError: If the shape is known not to fit.
    """
    with v1.name_scope(None, "logits"):
        logits = tf.cast(logits, tf.float32)
        message = f"logits shape must be [D0, D1, ... DN, logits_dimension={dimension}], "
        rank = logits.shape.rank
        if rank is None:
            shape = tf.shape(logits)
            fits = tf.logical_and(tf.rank(logits) >= 2, tf.equal(shape[-1], dimension))
            return required(logits, fits, message + "got", {"logits_shape": shape})
        if rank < 2 or logits.shape[-1] not in (None, dimension):
            raise ValueError(
                f"{message}got {logits.shape}. Give the last layer as many units as "
                "head.logits_dimension says."
            )
        if logits.shape[-1] is None:
            shape = tf.shape(logits)
            return required(
                logits, tf.equal(shape[-1], dimension), message + "got", {"logits_shape": shape}
            )
        return logits


def matching_logits(
    tensor: tf.Tensor, logits: tf.Tensor, *, dimensions: Sequence[int], message: str, what: str
) -> tf.Tensor:
    """Gives a tensor back whose shape is that of the logits, but for the last axis.

    Args:
        tensor: The tensor.
        logits: [D0, ... DN, logits dimension].
        dimensions: What the last axis may be.
        message: What to say if it is not so; the shapes are added.
        what: What the tensor is, for the message.

    Returns:
        The tensor; where a shape is not known, one that depends on a check.

    Raises:
        ValueError: If the shapes are known not to match.
    """
    leading = logits.shape[:-1]
    expected = [leading.concatenate(dimension) for dimension in dimensions]
    if not any(tensor.shape.is_compatible_with(shape) for shape in expected):
        raise ValueError(f"{message} logits_shape: {logits.shape}, {what}_shape: {tensor.shape}.")
    if tensor.shape.is_fully_defined() and logits.shape.is_fully_defined():
        return tensor
    shape, logits_shape = tf.shape(tensor), tf.shape(logits)
    fits = [
        _equal_shapes(shape, tf.concat([logits_shape[:-1], [dimension]], axis=0))
        for dimension in dimensions
    ]
    return required(
        tensor,
        tf.reduce_any(fits),
        message,
        {"logits_shape": logits_shape, f"{what}_shape": shape},
    )


def with_last_axis(tensor: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Adds an axis of one at the end where a tensor has one axis less than the logits."""
    rank, logits_rank = tensor.shape.rank, logits.shape.rank
    if rank is not None and logits_rank is not None and rank == logits_rank - 1:
        return tf.expand_dims(tensor, -1)
    return tensor


def _equal_shapes(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if a.shape.is_fully_defined() and a.shape == b.shape:
        return tf.reduce_all(tf.equal(a, b))
    # Shapes of unequal ranks do not compare element by element.
    return tf.cond(
        tf.equal(tf.size(a), tf.size(b)),
        lambda: tf.reduce_all(tf.equal(a, b)),
        lambda: tf.constant(False),
    )
