"""What to parse Examples with: the features of columns, a label and a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

v1 = tf.compat.v1
_numeric_column = without_notice(tf.feature_column.numeric_column)


def classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns a parsing spec for a classifier; mirrors `tf.estimator.classifier_parse_example_spec`.

    Args:
        feature_columns: Columns of `tf.feature_column`.
        label_key: Name of the label in an Example.
        label_dtype: int64, the default, or string.
        label_default: The label of an Example that has none. Defaults to `None`, an error.
        weight_column: Name or numeric column of the weight. Defaults to `None`.

    Returns:
        Feature name -> `FixedLenFeature` or `VarLenFeature`, for `tf.io.parse_example`.

    Raises:
        ValueError: If label or weight are features of the columns, or the weight is not a numeric
            column.
    """
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    make = without_notice(tf.feature_column.make_parse_example_spec)
    return _with_label_and_weight(make, feature_columns, label_key, label, weight_column)


def regressor_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Returns a parsing spec for a regressor; mirrors `tf.estimator.regressor_parse_example_spec`.

    Args:
        feature_columns: Columns of `tf.feature_column`.
        label_key: Name of the label in an Example.
        label_dtype: Type of the label. Defaults to float32.
        label_default: The label of an Example that has none. Defaults to `None`, an error.
        label_dimension: How many numbers a label has. Defaults to 1.
        weight_column: Name or numeric column of the weight. Defaults to `None`.

    Returns:
        Feature name -> `FixedLenFeature` or `VarLenFeature`, for `tf.io.parse_example`.

    Raises:
        ValueError: As `classifier_parse_example_spec`.
    """
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    make = without_notice(tf.feature_column.make_parse_example_spec)
    return _with_label_and_weight(make, feature_columns, label_key, label, weight_column)


def v1_classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """As `classifier_parse_example_spec`, for `tf.compat.v1.feature_column` as well."""
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    make = without_notice(v1.feature_column.make_parse_example_spec)
    return _with_label_and_weight(make, feature_columns, label_key, label, weight_column)


def v1_regressor_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """As `regressor_parse_example_spec`, for `tf.compat.v1.feature_column` as well."""
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    make = without_notice(v1.feature_column.make_parse_example_spec)
    return _with_label_and_weight(make, feature_columns, label_key, label, weight_column)


def _with_label_and_weight(
    make_spec: Callable[[Any], dict[str, Any]],
    columns: Iterable[Any],
    label_key: str,
    label: tf.io.FixedLenFeature,
    weight_column: Any,
) -> dict[str, Any]:
    spec = dict(make_spec(columns))
    if label_key in spec:
        raise ValueError(
            f"label should not be used as feature. label_key: {label_key!r}, features: "
            f"{sorted(spec)}"
        )
    spec[label_key] = label
    if weight_column is None:
        return spec
    if isinstance(weight_column, str):
        weight_column = _numeric_column(weight_column)
    # The class itself has no public name.
    if not isinstance(weight_column, type(_numeric_column("any"))):
        raise ValueError(
            "weight_column should be an instance of tf.feature_column.numeric_column. Given type: "
            f"{type(weight_column)} value: {weight_column!r}. The column's name is taken too."
        )
    if weight_column.key in spec:
        raise ValueError(
            f"weight_column should not be used as feature. weight_column: {weight_column.key!r}, "
            f"features: {sorted(spec)}"
        )
    return {**spec, **weight_column.parse_example_spec}
