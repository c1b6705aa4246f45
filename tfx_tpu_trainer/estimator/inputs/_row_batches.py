"""Batches of rows that are held in memory, as tensors of the default graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._number_checks import check_is_number

v1 = tf.compat.v1
_logger = tf.get_logger()


class Reading(NamedTuple):
    """In which order rows are read, and how many at once.

    Attributes:
        batch_size: Rows of a batch.
        num_epochs: How often each row is read; `None` for without end.
        shuffle: Whether the order is a random one.
        queue_capacity: How many rows are mixed at a time.
        num_threads: How many readers there are; each one reads `num_epochs` times.
    """

    batch_size: int
    num_epochs: int | None
    shuffle: bool
    queue_capacity: int
    num_threads: int


def reading_of(
    batch_size: Any, num_epochs: Any, shuffle: Any, queue_capacity: Any, num_threads: Any
) -> Reading:
    """Returns a `Reading` of what a program gives."""
    for name, number in (
        ("batch_size", batch_size),
        ("num_epochs", num_epochs),
        ("queue_capacity", queue_capacity),
        ("num_threads", num_threads),
    ):
        check_is_number(name, number)
    return Reading(batch_size, num_epochs, bool(shuffle), queue_capacity, num_threads)


def check_shuffle(shuffle: Any) -> None:
    """Checks that it was said whether rows are shuffled."""
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it "
            f"as True for training); got {shuffle!r}"
        )


def batches(columns: Sequence[np.ndarray], reading: Reading) -> list[tf.Tensor]:
    """Returns the tensors of the next batch.

    The rows stay outside of the graph, which is written to the model's folder. With a number of
    epochs the last batch may be short; without, all are full and cross the ends of the data.
    """
    rows = len(columns[0])
    _warn_of_threads(reading)
    indices = _indices(rows, reading).batch(
        reading.batch_size, drop_remainder=reading.num_epochs is None
    )
    dtypes = [tf.as_dtype(column.dtype) for column in columns]
    dataset = indices.map(lambda index: _rows(columns, dtypes, index)).prefetch(1)
    tensors = v1.data.make_one_shot_iterator(dataset).get_next()
    return list(tensors)


def _indices(rows: int, reading: Reading) -> tf.data.Dataset:
    epochs = reading.num_epochs
    if epochs is not None:
        epochs *= reading.num_threads
    if not reading.shuffle:
        return tf.data.Dataset.range(rows).repeat(epochs)

    # A reader begins anywhere: else the rows at the end would never be among the first.
    def from_anywhere(start: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(rows).repeat(epochs).map(lambda row: (row + start) % rows)

    starts = tf.data.Dataset.from_tensors(0).map(
        lambda _: tf.random.uniform([], maxval=rows, dtype=tf.int64)
    )
    return starts.flat_map(from_anywhere).shuffle(reading.queue_capacity)


def _rows(
    columns: Sequence[np.ndarray], dtypes: Sequence[tf.DType], index: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    def pick(rows: np.ndarray) -> list[np.ndarray]:
        return [column[rows] for column in columns]

    picked = tf.numpy_function(pick, [index], dtypes)
    for tensor, column in zip(picked, columns):
        tensor.set_shape([index.shape[0], *column.shape[1:]])
    return tuple(picked)


def _warn_of_threads(reading: Reading) -> None:
    if reading.num_threads <= 1:
        return
    if reading.num_epochs is not None:
        _logger.warning(
            "enqueue_data was called with num_epochs and num_threads > 1. num_epochs is applied per "
            "thread, so this will produce more epochs than you probably intend. If you want to "
            "limit epochs, use one thread. num_threads=%d reads each row num_epochs * num_threads "
            "= %d times.",
            reading.num_threads,
            reading.num_epochs * reading.num_threads,
        )
    if reading.num_epochs is not None and reading.shuffle:
        _logger.warning(
            "enqueue_data was called with shuffle=True, num_threads > 1, and num_epochs. This will "
            "create multiple threads, all reading the array/dataframe in order adding to the same "
            "shuffling queue; the results will likely not be sufficiently shuffled: the rows of "
            "all epochs are shuffled together."
        )
    if not reading.shuffle:
        _logger.warning(
            "enqueue_data was called with shuffle=False and num_threads > 1. This will create "
            "multiple threads, all reading the array/dataframe in order. If you want examples read "
            "in order, use one thread; if you want multiple threads, enable shuffling."
        )
