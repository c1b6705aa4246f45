"""Which rows of a batch belong to which slices, computed where the batch is read."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

SliceValue = str | int | float
Condition = tuple[str, SliceValue | None]

# A dense, sparse or ragged tensor.
Feature = Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """Rows that have certain values of certain features.

    Attributes:
        name: The slice's name, different from every other's.
        conditions: Pairs of a feature and a value that is among the row's; `None` is any value.
        excluded: Conditions of other slices: rows that meet all of one of them are not in this one.
    """

    name: str
    conditions: tuple[Condition, ...]
    excluded: tuple[tuple[Condition, ...], ...] = ()


def slice_membership(features: Mapping[str, Feature], slices: Sequence[Slice]) -> tf.Tensor:
    """Tells for each row of a batch and each slice whether the row is in it.

    A row with several values of a feature is in the slices of all of them; one without any value
    is in none.

    Args:
        features: The features that the slices name: dense of shape [rows, ...], sparse or ragged.
        slices: The slices.

    Returns:
        int32 [rows, slices] of 0 and 1: numbers, which may go to TPU cores where texts may not.
    """
    # In a few large ops: a graph with some for each of many slices would take long to build.
    conditions = _Conditions(features, slices)
    membership = conditions.all_hold([one.conditions for one in slices])
    for index, one in enumerate(slices):
        if one.excluded:
            outside = tf.logical_not(tf.reduce_any(conditions.all_hold(one.excluded), axis=1))
            this = tf.one_hot(index, len(slices), on_value=False, off_value=True, dtype=tf.bool)
            membership = tf.logical_and(membership, tf.logical_or(outside[:, tf.newaxis], this))
    membership = tf.cast(membership, tf.int32)
    # Cores cut a batch by its static number of rows, where every batch is full.
    rows = [f.shape[0] for f in features.values() if f.shape.rank and f.shape[0] is not None]
    membership.set_shape([rows[0] if rows else None, len(slices)])
    return membership


class _Conditions:
    """All conditions of some slices: bool [rows, conditions], and where each stands in it."""

    def __init__(self, features: Mapping[str, Feature], slices: Sequence[Slice]) -> None:
        by_feature: dict[str, dict[SliceValue | None, None]] = {}
        for one in slices:
            for name, value in itertools.chain(one.conditions, *one.excluded):
                by_feature.setdefault(name, {})[value] = None
        self._places: dict[Condition, int] = {}
        columns = []
        for name, values in by_feature.items():
            # Whether there is any value comes first, asked for or not.
            wanted = [value for value in values if value is not None]
            for value in (None, *wanted):
                self._places[name, value] = len(self._places)
            columns.append(_holds(*_values_of(features[name]), wanted))
        self._holds = tf.concat(columns, axis=1)

    def all_hold(self, groups: Sequence[Sequence[Condition]]) -> tf.Tensor:
        """Tells for each row and each group whether all of its conditions hold."""
        longest = max(map(len, groups))
        places = [
            [self._places[group[min(i, len(group) - 1)]] for i in range(longest)]
            for group in groups
        ]
        return tf.reduce_all(tf.gather(self._holds, tf.constant(places), axis=1), axis=2)


def _values_of(feature: Feature) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a feature's values as [rows, values], and where there is one."""
    if isinstance(feature, tf.SparseTensor):
        there = tf.SparseTensor(
            feature.indices, tf.ones_like(feature.indices[:, 0], tf.int32), feature.dense_shape
        )
        values, present = (
            tf.sparse.to_dense(sparse, validate_indices=False) for sparse in (feature, there)
        )
    elif isinstance(feature, tf.RaggedTensor):
        values = feature.to_tensor()
        present = feature.with_flat_values(tf.ones_like(feature.flat_values, tf.int32)).to_tensor()
    else:
        values, present = feature, tf.ones(tf.shape(feature), tf.int32)
    shape = (tf.shape(values)[0], tf.size(values) // tf.maximum(tf.shape(values)[0], 1))
    return tf.reshape(values, shape), tf.cast(tf.reshape(present, shape), tf.bool)


def _holds(values: tf.Tensor, present: tf.Tensor, wanted: Sequence[SliceValue]) -> tf.Tensor:
    """Tells for each row whether it has a value at all, and each of the wanted ones."""
    any_value = tf.reduce_any(present, axis=1, keepdims=True)
    if not wanted:
        return any_value
    if values.dtype == tf.bool:
        values = tf.cast(values, tf.int32)
    equal = tf.equal(values[:, :, tf.newaxis], tf.constant(wanted, values.dtype))
    found = tf.reduce_any(tf.logical_and(present[:, :, tf.newaxis], equal), axis=1)
    return tf.concat([any_value, found], axis=1)
