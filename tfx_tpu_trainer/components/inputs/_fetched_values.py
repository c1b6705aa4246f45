"""The values of a feature as a session returns it, dense, sparse or ragged, row by row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def values_by_row(value: Any) -> list[np.ndarray]:
    """Returns the values of each row of a batch, without those that are missing."""
    if isinstance(value, v1.SparseTensorValue):
        of_row = value.indices[:, 0]
        in_order = np.argsort(of_row, kind="stable")
        ends = np.searchsorted(of_row[in_order], np.arange(1, value.dense_shape[0]))
        # Without a row there is nothing to split.
        return np.split(value.values[in_order], ends)[: value.dense_shape[0]]
    if isinstance(value, v1.ragged.RaggedTensorValue):
        splits, inner = value.row_splits, value.values
        while isinstance(inner, v1.ragged.RaggedTensorValue):
            splits, inner = inner.row_splits[splits], inner.values
        return [np.ravel(inner[start:end]) for start, end in itertools.pairwise(splits)]
    return [np.ravel(row) for row in value]
