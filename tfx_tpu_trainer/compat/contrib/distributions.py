"""Provides the names of `tf.contrib.distributions` that `tf.compat.v1.distributions` lacks."""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_ROUNDED = {"lower": tf.math.ceil, "higher": tf.math.floor, "nearest": tf.math.round}

__all__ = ["percentile"]


def percentile(
    x: Any,
    q: Any,
    axis: Any = None,
    interpolation: str | None = None,
    keep_dims: bool = False,
    validate_args: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Computes a percentile without interpolation: it is one of the values."""
    kind = interpolation or "nearest"
    if kind not in _ROUNDED:
        raise ValueError(f"interpolation must be one of {sorted(_ROUNDED)}; got {interpolation!r}.")
    with v1.name_scope(name, "percentile"):
        values = tf.convert_to_tensor(x)
        share = tf.cast(q, tf.float64)
        if validate_args:
            within = [v1.assert_greater_equal(share, 0.0 * share)]
            within.append(v1.assert_less_equal(share, 0.0 * share + 100.0))
            with tf.control_dependencies(within):
                share = tf.identity(share)
        rank = values.shape.rank
        if axis is None:
            samples, last = tf.reshape(values, [-1]), [] if rank is None else list(range(rank))
        else:
            given = [axis] if isinstance(axis, int) else [int(each) for each in axis]
            last = [each % rank for each in given]
            kept = [each for each in range(rank) if each not in last]
            moved = tf.transpose(values, kept + last)
            samples = tf.reshape(moved, tf.concat([tf.shape(moved)[: len(kept)], [-1]], 0))
        count = tf.shape(samples)[-1]
        # From the largest down, to round halves as the original did.
        place = _ROUNDED[kind]((1.0 - share / 100.0) * tf.cast(count - 1, tf.float64))
        place = tf.clip_by_value(tf.cast(place, tf.int32), 0, count - 1)
        found = tf.gather(tf.sort(samples, direction="DESCENDING"), place, axis=-1)
        if keep_dims:
            sizes = tf.shape(values)
            if axis is None:
                return tf.reshape(found, tf.ones_like(sizes))
            return tf.reshape(found, [1 if d in last else sizes[d] for d in range(rank)])
        return found
