"""What the feature columns of a canned estimator must be, told before a graph is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tfx_tpu_trainer.estimator._number_checks import as_items


def check_features(features: Any) -> None:
    """Checks what input_fn returns as features."""
    if not isinstance(features, Mapping):
        raise ValueError(
            f"features should be a dictionary of `Tensor`s. Given type: {type(features)}. Let "
            "input_fn return a dict keyed by the names of the feature columns."
        )


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
        # A column of TensorFlow 1 has nothing public but its name and its Example's spec.
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
