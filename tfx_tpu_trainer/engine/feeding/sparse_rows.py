"""Sparse tensors as rows that can be cut, padded and put together like dense ones."""

from __future__ import annotations

import tensorflow as tf

# What `tf.io.serialize_many_sparse` gives for a row: its indices, values and shape.
_PARTS = 3


def encode_rows(sparse: tf.SparseTensor, *, rows: int | None) -> tf.Tensor:
    """Writes each row of a sparse tensor as strings.

    How many values a row has is not in its shape any more, so that a batch can be cut into the
    pieces of the cores, and a short one padded, as if it were dense.

    Args:
        sparse: A sparse tensor of rank 2 or more, its rows in order.
        rows: Number of rows where it is known, else `None`.

    Returns:
        A string tensor [rows, 3].
    """
    return tf.ensure_shape(tf.io.serialize_many_sparse(sparse), [rows, _PARTS])


def decode_rows(
    encoded: tf.Tensor, *, dtype: tf.DType, rank: int, padded: bool = False
) -> tf.SparseTensor:
    """Reads what `encode_rows` wrote.

    Args:
        encoded: A string tensor [rows, 3].
        dtype: Dtype of the values.
        rank: Rank of the sparse tensor that was written.
        padded: Whether there may be rows of empty strings, as padding makes them, which are then
            rows without values; or no row at all. Defaults to `False`.

    Returns:
        The sparse tensor; its other dimensions are as large as its largest row's.
    """
    if not padded:
        return tf.io.deserialize_many_sparse(encoded, dtype, rank)
    no_values = tf.SparseTensor(
        indices=tf.zeros([0, rank], tf.int64),
        values=tf.zeros([0], dtype),
        dense_shape=[1] + [0] * (rank - 1),
    )
    empty_row = tf.io.serialize_many_sparse(no_values)
    is_padding = tf.equal(tf.strings.length(encoded), 0)
    filled = tf.where(is_padding, tf.broadcast_to(empty_row, tf.shape(encoded)), encoded)
    # One row more, as there must be one.
    decoded = tf.io.deserialize_many_sparse(tf.concat([filled, empty_row], axis=0), dtype, rank)
    rows = tf.shape(encoded, out_type=tf.int64)[:1]
    shape = tf.concat([rows, decoded.dense_shape[1:]], axis=0)
    return tf.SparseTensor(decoded.indices, decoded.values, shape)
