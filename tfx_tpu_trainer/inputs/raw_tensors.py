"""Raw features as plain tensors, one input each: what a REST request can carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

MISSING_INTEGER = tf.int64.min
"""Stands for a missing integer; a float that is missing is NaN, a string the empty one."""


def unsupported_features(feature_spec: Mapping[str, Any]) -> list[str]:
    """Names the features that one plain tensor can't carry: SparseFeature and RaggedFeature."""
    plain = (tf.io.FixedLenFeature, tf.io.VarLenFeature)
    return sorted(name for name, feature in feature_spec.items() if not isinstance(feature, plain))


def raw_placeholders(
    feature_spec: Mapping[str, Any], single_valued: frozenset[str]
) -> dict[str, tf.Tensor]:
    """Makes an input for each raw feature in the default graph.

    Args:
        feature_spec: Name -> `FixedLenFeature` or `VarLenFeature`.
        single_valued: Those of variable length that have one value a row at most.

    Returns:
        Name -> placeholder: [batch, *shape] for a fixed length, [batch] for a single value,
        [batch, n] for the values of a row, filled up with missing ones.
    """
    placeholders = {}
    for name, feature in feature_spec.items():
        if isinstance(feature, tf.io.FixedLenFeature):
            shape = [None, *feature.shape]
        else:
            shape = [None] if name in single_valued else [None, None]
        # Names of raw features may hold what a name scope can't; the signature keeps them.
        placeholders[name] = tf.compat.v1.placeholder(feature.dtype, shape, name="raw_feature")
    return placeholders


def as_parsed(feature: Any, values: tf.Tensor) -> tf.Tensor | tf.SparseTensor:
    """Returns an input in the form in which `tf.io.parse_example` would give it.

    Args:
        feature: Its `FixedLenFeature` or `VarLenFeature`.
        values: The input, as `raw_placeholders` makes it.

    Returns:
        The input itself for a fixed length. For a variable one a sparse tensor [batch, most
        values in a row], in which the values of a row stand first and missing ones are left out.
    """
    if isinstance(feature, tf.io.FixedLenFeature):
        return values
    if values.shape.rank == 1:
        values = values[:, tf.newaxis]
    present = _is_present(values)
    # Plain ops: a RaggedTensor makes the same of three times as many, for every feature.
    places = tf.where(present)
    lengths = tf.reduce_sum(tf.cast(present, tf.int64), axis=1)
    columns = tf.cumsum(tf.cast(present, tf.int64), axis=1, exclusive=True)
    return tf.SparseTensor(
        indices=tf.stack([places[:, 0], tf.gather_nd(columns, places)], axis=1),
        values=tf.gather_nd(values, places),
        dense_shape=tf.stack(
            [tf.shape(values, tf.int64)[0], tf.reduce_max(tf.concat([lengths, [0]], axis=0))]
        ),
    )


def absent(feature_spec: Mapping[str, Any], rows: tf.Tensor) -> dict[str, Any]:
    """Returns features that a prediction doesn't need in the form of `tf.io.parse_example`.

    A graph of Transform in the format of TensorFlow 2 takes them all the same.

    Args:
        feature_spec: Name -> feature of any kind.
        rows: Number of rows, a scalar.

    Returns:
        Name -> what is parsed from examples without the feature; zeros for a fixed length.
    """
    optional = {
        name: _with_default(feature) if isinstance(feature, tf.io.FixedLenFeature) else feature
        for name, feature in feature_spec.items()
    }
    # A tf.Example without features is serialized as the empty string.
    return dict(tf.io.parse_example(tf.fill([rows], ""), optional)) if optional else {}


def _with_default(feature: tf.io.FixedLenFeature) -> tf.io.FixedLenFeature:
    zeros = np.zeros(feature.shape, tf.as_dtype(feature.dtype).as_numpy_dtype)
    default = np.full(feature.shape, "") if feature.dtype == tf.string else zeros
    return tf.io.FixedLenFeature(feature.shape, feature.dtype, default)


def _is_present(values: tf.Tensor) -> tf.Tensor:
    if values.dtype == tf.string:
        return tf.not_equal(values, "")
    if values.dtype.is_floating:
        return tf.logical_not(tf.math.is_nan(values))
    return tf.not_equal(values, MISSING_INTEGER)
