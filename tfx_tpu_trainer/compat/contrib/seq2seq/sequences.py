"""The loss of sequences, and the copies of rows for a beam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    sum_over_timesteps: bool = False,
    sum_over_batch: bool = False,
    softmax_loss_function: Callable[..., tf.Tensor] | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Computes the cross-entropy of sequences, with a weight for each place."""
    for given, rank, label in (
        (logits, 3, "logits"),
        (targets, 2, "targets"),
        (weights, 2, "weights"),
    ):
        if len(given.shape) != rank:
            raise ValueError(f"sequence_loss takes {label} of {rank} axes; got {given.shape}.")
    if (average_across_timesteps and sum_over_timesteps) or (
        average_across_batch and sum_over_batch
    ):
        raise ValueError(
            "An axis is averaged or summed, not both: set average_across_... to False for "
            "sum_over_timesteps or sum_over_batch."
        )
    with v1.name_scope(name, "sequence_loss", [logits, targets, weights]):
        function = softmax_loss_function or tf.nn.sparse_softmax_cross_entropy_with_logits
        flat = function(
            labels=tf.reshape(targets, [-1]), logits=tf.reshape(logits, [-1, tf.shape(logits)[2]])
        )
        losses = tf.reshape(flat * tf.reshape(weights, [-1]), tf.shape(logits)[:2])
        if average_across_timesteps and average_across_batch:
            axes, averaged = [0, 1], True
        elif sum_over_timesteps and sum_over_batch:
            axes, averaged = [0, 1], False
        elif average_across_timesteps or average_across_batch:
            axes, averaged = [0 if average_across_batch else 1], True
        elif sum_over_timesteps or sum_over_batch:
            axes, averaged = [0 if sum_over_batch else 1], False
        else:
            return losses
        if averaged:
            count = tf.reduce_sum(weights, axes)
        else:
            count = tf.math.count_nonzero(weights, axes, dtype=losses.dtype)
        return tf.math.divide_no_nan(tf.reduce_sum(losses, axes), count)


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Repeats each row, so that copies of a row follow each other."""
    with v1.name_scope(name, "tile_batch"):
        return tf.nest.map_structure(lambda each: _tiled(each, multiplier), t)


def _tiled(each: Any, multiplier: int) -> tf.Tensor:
    each = tf.convert_to_tensor(each)
    if not each.shape.rank:
        raise ValueError(f"tile_batch needs tensors of known rank with rows; got {each.shape}.")
    repeated = tf.repeat(each, multiplier, axis=0)
    rows = each.shape[0]
    repeated.set_shape([None if rows is None else rows * multiplier, *each.shape[1:]])
    return repeated


def hardmax(logits: Any, name: str | None = None) -> tf.Tensor:
    """Puts 1 at the greatest value of the last axis, and 0 elsewhere."""
    with v1.name_scope(name, "Hardmax", [logits]):
        logits = tf.convert_to_tensor(logits)
        return tf.one_hot(tf.argmax(logits, -1), logits.shape[-1], dtype=logits.dtype)
