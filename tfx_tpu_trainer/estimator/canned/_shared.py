"""Parts that all canned estimators share: checked feature columns, parsing specs, partitioners, train ops."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._argument_checks import as_items
from tfx_tpu_trainer.estimator.heads import Head, _training

v1 = tf.compat.v1

ModelFn = Callable[..., Any]
# An optimizer of `tf.compat.v1.estimator`: a name, an optimizer, or a function that returns one.
V1Optimizer: TypeAlias = str | v1.train.Optimizer | Callable[[], v1.train.Optimizer]

# In bytes; smaller variables of an input layer or a linear model are not split.
_LEAST_SLICE: Final = 64 << 20


_numeric_column = without_notice(tf.feature_column.numeric_column)
_make_spec = without_notice(tf.feature_column.make_parse_example_spec)
_v1_make_spec = without_notice(v1.feature_column.make_parse_example_spec)


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
    return _parsing_spec(_make_spec, feature_columns, label_key, label, weight_column)


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
    return _parsing_spec(_make_spec, feature_columns, label_key, label, weight_column)


def v1_classifier_parse_example_spec(
    feature_columns: Iterable[Any],
    label_key: str,
    label_dtype: tf.DType = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """`classifier_parse_example_spec` for `tf.compat.v1.feature_column` as well."""
    label = tf.io.FixedLenFeature((1,), label_dtype, label_default)
    return _parsing_spec(_v1_make_spec, feature_columns, label_key, label, weight_column)


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
    return _parsing_spec(_v1_make_spec, feature_columns, label_key, label, weight_column)


def _parsing_spec(
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


def check_features(features: Any) -> None:
    """Checks the features from input_fn."""
    if not isinstance(features, Mapping):
        raise ValueError(
            f"features should be a dictionary of `Tensor`s. Given type: {type(features)}. Let "
            "input_fn return a dict keyed by the names of the feature columns."
        )


# V1 estimators split variables over parameter servers. Without servers nothing is split, but as in the original the
# partitioner is used, so the names of optimizer slots are those in the original's checkpoints:
# `linear/linear_model/age/weights/part_0/Ftrl`.
def input_partitioner(config: Any, given: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns the partitioner of an input layer or a linear model."""
    return given or v1.min_max_variable_partitioner(
        max_partitions=_servers(config), min_slice_size=_LEAST_SLICE
    )


def hidden_partitioner(config: Any) -> Callable[..., Any]:
    """Returns the partitioner of hidden layers."""
    return v1.min_max_variable_partitioner(max_partitions=_servers(config))


def _servers(config: Any) -> int:
    return config.num_ps_replicas if config else 0


class Trained(NamedTuple):
    """Variables and their optimizer."""

    # A Keras 2 legacy or a `tf.compat.v1.train` optimizer.
    optimizer: Any
    # `None` lets a `tf.compat.v1.train` optimizer choose them, as the original does for a model of one part: programs
    # wrap optimizers whose `minimize` takes no `var_list`.
    variables: Sequence[tf.Variable] | None


def linear_rate(limit: float, number_of_columns: int) -> float:
    """Returns a linear model's default rate, which falls with the number of columns."""
    return min(limit, 1.0 / math.sqrt(number_of_columns))


def train_op_fn_of(
    head: Head, parts: Sequence[Trained], updates: Sequence[tf.Operation] = ()
) -> Callable[[tf.Tensor], Any]:
    """Returns the function from the loss to the train op of an estimator of `tf.estimator`."""

    def train_op_fn(loss: tf.Tensor) -> Any:
        of_keras = _training.per_replica(loss, head.loss_reduction)
        steps = [
            _training.minimize(
                part.optimizer,
                loss if isinstance(part.optimizer, v1.train.Optimizer) else of_keras,
                part.variables,
                # The first optimizer alone counts the step.
                global_step=None if number else v1.train.get_or_create_global_step(),
                loss_reduction=head.loss_reduction,
            )
            for number, part in enumerate(parts)
        ]
        return tf.group(*steps, *updates)

    return train_op_fn


def v1_train_op_fn_of(head: Head, parts: Sequence[Trained]) -> Callable[[tf.Tensor], Any]:
    """Returns the function from the loss to the train op of an estimator of `tf.compat.v1`.

    All parts train before the global step is raised. Updates of averages are in `UPDATE_OPS`.
    """

    def train_op_fn(loss: tf.Tensor) -> Any:
        only = len(parts) == 1
        steps = [
            _training.minimize(
                part.optimizer,
                loss,
                part.variables,
                global_step=v1.train.get_global_step() if only else None,
                loss_reduction=head.loss_reduction,
            )
            for part in parts
        ]
        # With two optimizers, neither may raise the step while the other still reads it for a decaying rate.
        if not only:
            with tf.control_dependencies([tf.group(*steps)]):
                steps = [v1.assign_add(v1.train.get_global_step(), 1).op]
        return tf.group(*steps, *v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    return train_op_fn


def trainable_variables(scope: v1.VariableScope) -> list[tf.Variable]:
    """Returns the trainable variables of a scope; of a partitioned one, each part."""
    return list(v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"{scope.name}/"))
