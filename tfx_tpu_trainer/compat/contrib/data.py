"""Makes batches of a fixed size, as `tf.contrib.data` did: functions for a dataset's `apply`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_Change = Callable[[tf.data.Dataset], tf.data.Dataset]

__all__ = ["batch_and_drop_remainder", "padded_batch_and_drop_remainder"]


def batch_and_drop_remainder(batch_size: Any) -> _Change:
    """Makes batches, and drops a short last one."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: Any, padded_shapes: Any, padding_values: Any = None
) -> _Change:
    """Makes batches of rows that are padded to one shape, and drops a short last one."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )
