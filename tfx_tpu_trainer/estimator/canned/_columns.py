"""Checks the feature columns of canned estimators, and makes parsing specs from them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._number_checks import as_items

v1 = tf.compat.v1
_numeric_column = without_notice(tf.feature_column.numeric_column)


def check_linear_columns(columns: Iterable[Any] | None, *, allow_v1: bool) -> tuple[Any, ...]:
    """Returns the columns of a linear model as a tuple."""
    return _checked(
        columns,
        allow_v1=allow_v1,
        methods=("get_dense_tensor", "get_sparse_tensors"),
        wanted="either a DenseColumn or CategoricalColumn",
    )


def check_dense_columns(columns: Iterable[Any] | None, *, allow_v1: bool) -> tuple[Any, ...]:
    """Returns the columns of a deep model as a tuple; see `check_linear_columns`."""
    return _checked(
        columns,
        allow_v1=allow_v1,
        methods=("get_dense_tensor",),
        wanted="a DenseColumn. You can wrap a categorical column with an embedding_column or "
        "indicator_column",
    )


def _checked(
    columns: Iterable[Any] | None, *, allow_v1: bool, methods: tuple[str, ...], wanted: str
) -> tuple[Any, ...]:
    if isinstance(columns, Mapping):
        raise ValueError(f"Expected feature_columns to be iterable, found dictionary: {columns!r}.")
    if hasattr(columns, "parents") or hasattr(columns, "get_config"):
        raise ValueError(
            f"Items of feature_columns must be {wanted}. Given: {columns!r}, which is one column: put "
            "it into a list."
        )
    checked = as_items("feature_columns", columns, '[tf.feature_column.numeric_column("x")]')
    if not checked:
        raise ValueError(f"feature_columns must not be empty; given: {columns!r}.")
    for column in checked:
        is_new = hasattr(column, "get_dense_tensor") or hasattr(column, "get_sparse_tensors")
        # A column of TensorFlow 1 has only a name and a parsing spec in public.
        if not is_new and hasattr(column, "name") and not isinstance(column, type):
            if allow_v1:
                continue
            raise ValueError(
                f"Received a feature column from TensorFlow v1, but this is a TensorFlow v2 "
                f"Estimator: {column.name!r}. Please either use v2 feature columns (of "
                "tf.feature_column) with this Estimator, or switch to a v1 Estimator (of "
                "tfx_tpu_trainer.estimator.v1) for use with v1 feature columns."
            )
        if not any(hasattr(column, method) for method in methods):
            raise ValueError(f"Items of feature_columns must be {wanted}. Given: {column!r}")
    _check_names_differ(checked)
    return checked


def _check_names_differ(columns: tuple[Any, ...]) -> None:
    seen: dict[str, Any] = {}
    for column in columns:
        if column.name in seen:
            raise ValueError(
                f"Duplicate feature column name {column.name!r} found for columns: {column} and "
                f"{seen[column.name]}. This usually means that these columns refer to same base "
                "feature. Either one must be discarded or a duplicated but renamed item should "
                "be inserted in features dict."
            )
        seen[column.name] = column


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
        label_default: The label of an Example without one. Defaults to `None`, an error.
        weight_column: Name or numeric column of the weight. Defaults to `None`.

    Returns:
        Feature name -> `FixedLenFeature` or `VarLenFeature`, for `tf.io.parse_example`.

    Raises:
        ValueError: If label or weight is a feature of the columns, or the weight is not a numeric
            column.
    """
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    make_spec = tf.feature_column.make_parse_example_spec
    return _parsing_spec(make_spec, feature_columns, label_key, label, weight_column)


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
        label_default: The label of an Example without one. Defaults to `None`, an error.
        label_dimension: Numbers in a label. Defaults to 1.
        weight_column: Name or numeric column of the weight. Defaults to `None`.

    Returns:
        Feature name -> `FixedLenFeature` or `VarLenFeature`, for `tf.io.parse_example`.

    Raises:
        ValueError: As `classifier_parse_example_spec`.
    """
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    make_spec = tf.feature_column.make_parse_example_spec
    return _parsing_spec(make_spec, feature_columns, label_key, label, weight_column)


def v1_classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """`classifier_parse_example_spec` for `tf.compat.v1.feature_column` as well."""
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    make_spec = v1.feature_column.make_parse_example_spec
    return _parsing_spec(make_spec, feature_columns, label_key, label, weight_column)


def v1_regressor_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """`regressor_parse_example_spec` for `tf.compat.v1.feature_column` as well."""
    label = tf.io.FixedLenFeature((label_dimension,), label_dtype, label_default)
    make_spec = v1.feature_column.make_parse_example_spec
    return _parsing_spec(make_spec, feature_columns, label_key, label, weight_column)


def _parsing_spec(
    make_spec: Callable[[Any], dict[str, Any]],
    columns: Iterable[Any],
    label_key: str,
    label: tf.io.FixedLenFeature,
    weight_column: Any,
) -> dict[str, Any]:
    spec = dict(without_notice(make_spec)(columns))
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
