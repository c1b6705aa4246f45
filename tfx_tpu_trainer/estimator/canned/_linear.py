"""Linear estimators of `tf.estimator` and, with names `V1...`, of its V1 API."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._estimator import Estimator
from tfx_tpu_trainer.estimator._modes import ModeKeys, is_on_cores
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.canned._shared import (
    ModelFn,
    Trained,
    V1Optimizer,
    check_features,
    check_linear_columns,
    input_partitioner,
    linear_rate,
    train_op_fn_of,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads import Head, RegressionHead, _v1
from tfx_tpu_trainer.estimator.heads._classification import classification_head
from tfx_tpu_trainer.estimator.heads._head import check_head
from tfx_tpu_trainer.estimator.heads._losses import SUM_OVER_BATCH_SIZE
from tfx_tpu_trainer.estimator.heads._training import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1

_RATE_LIMIT: Final = 0.2


class Linear(NamedTuple):
    """The columns and the optimizer of a linear model."""

    columns: Any
    # A name, an instance, a function, or `None` for Ftrl.
    optimizer: Any
    # "mean", "sqrtn" or "sum".
    sparse_combiner: str

    def checked(self, *, allow_v1: bool) -> Linear:
        """Checks the columns."""
        return self._replace(columns=check_linear_columns(self.columns, allow_v1=allow_v1))

    def logits(self, features: Any, units: int) -> tuple[tf.Tensor, list[tf.Variable]]:
        """Makes logits [batch, units] and their variables, bias last, in a variable scope `linear_model`."""
        column_variables: dict[Any, Any] = {}
        logits = without_notice(v1.feature_column.linear_model)(
            features,
            self.columns,
            units=units,
            sparse_combiner=self.sparse_combiner,
            cols_to_vars=column_variables,
        )
        bias = _parts(column_variables.pop("bias"))
        # In the original's order, that of the columns' names.
        by_name = sorted(column_variables.items(), key=lambda item: item[0].name)
        weights = [part for _, variables in by_name for part in _parts(variables)]
        return logits, [*weights, *bias]

    def instance(self, make: Callable[..., Any]) -> Any:
        """Makes the optimizer; by default Ftrl, whose rate falls with the number of columns."""
        # The argument's default, "Ftrl", has a rate of 0.2 for any number of columns; only the rate for `None` falls
        # with it: 0.2 up to 25 columns, 0.1 for 100.
        rate = _RATE_LIMIT if self.optimizer else linear_rate(_RATE_LIMIT, len(self.columns))
        return make(self.optimizer or "Ftrl", rate)


def summarize_weights(variables: Sequence[tf.Variable], units: int) -> None:
    """Summarizes a linear model's bias and share of zero weights, except on cores."""
    if is_on_cores():
        return
    *weights, bias = variables
    if units > 1:
        v1.summary.histogram("bias", bias)
    else:
        v1.summary.scalar("bias", bias[0])
    zeros = [tf.cast(tf.math.count_nonzero(tf.equal(each, 0.0)), tf.float32) for each in weights]
    sizes = [tf.cast(tf.size(each), tf.float32) for each in weights]
    v1.summary.scalar("fraction_of_zero_weights", tf.add_n(zeros) / tf.add_n(sizes))


def _parts(variables: Any) -> list[tf.Variable]:
    """Returns the parts of variables; a partitioned one is a list of them."""
    if isinstance(variables, tf.Variable):
        return [variables]
    return [part for each in variables for part in _parts(each)]


def _linear_model_fn(head: Any, linear: Linear) -> ModelFn:
    """Returns the model_fn of the linear estimators of `tf.estimator`."""
    check_head(head)
    linear = linear.checked(allow_v1=False)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        check_features(features)
        with v1.variable_scope("linear", use_resource=True, auxiliary_name_scope=False):
            logits, variables = linear.logits(features, head.logits_dimension)
        summarize_weights(variables, head.logits_dimension)
        train_op_fn = None
        if mode == ModeKeys.TRAIN:
            trained = Trained(linear.instance(optimizer_instance), variables)
            train_op_fn = train_op_fn_of(head, [trained])
        return head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
        )

    return model_fn


def _v1_linear_model_fn(head: Any, linear: Linear, partitioner: Any) -> ModelFn:
    """Returns the model_fn of the linear estimators of `tf.compat.v1.estimator`."""
    check_head(head)
    linear = linear.checked(allow_v1=True)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        check_features(features)
        # All in one scope, with which the names of summaries and slots begin, unlike in V2.
        with v1.variable_scope("linear", partitioner=input_partitioner(config, partitioner)):
            logits, variables = linear.logits(features, head.logits_dimension)
            summarize_weights(variables, head.logits_dimension)
            trained = Trained(linear.instance(v1_optimizer_instance), None)
            train_op_fn = v1_train_op_fn_of(head, [trained])
            return head.create_estimator_spec(
                features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
            )

    return model_fn


class LinearClassifier(Estimator):
    """Predicts the class of each row by a linear model; mirrors `tf.estimator.LinearClassifier`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import LinearClassifier, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> towns = np.array(["Ulm", "Bonn", "Ulm", "Bonn"])
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"town": towns}, np.array([0, 1, 0, 1]), num_epochs=None, shuffle=False
        ... )
        >>> town = tf.feature_column.categorical_column_with_vocabulary_list("town", ["Bonn", "Ulm"])
        >>> estimator = LinearClassifier([town], model_dir="runs/linear")
        >>> estimator = estimator.train(input_fn, max_steps=20)
        >>> print(estimator.evaluate(input_fn, steps=1)["accuracy"])
        1.0
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        sparse_combiner: str = "sum",
    ) -> None:
        """Checks the arguments of a classifier.

        Args:
            feature_columns: Columns of `tf.feature_column`, dense or categorical.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to a temporary folder.
            n_classes: Number of classes. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss. Defaults to `None`.
            label_vocabulary: Names of the classes, for string labels. Defaults to `None`: labels are integers.
            optimizer: A legacy Keras optimizer, 'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that returns
                one. Defaults to 'Ftrl'; with `None`, its rate follows the number of columns.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: A checkpoint, a SavedModel or `WarmStartSettings` for initial values. Defaults to `None`.
            loss_reduction: A constant of `tf.losses.Reduction`. Defaults to the mean over the rows.
            sparse_combiner: How the values of a row are combined: "mean", "sqrtn" or "sum", the default.

        Raises:
            ValueError: If an argument is invalid, such as `n_classes` below 2.
        """
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        linear = Linear(feature_columns, optimizer, sparse_combiner)
        model_fn = _linear_model_fn(head, linear)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearRegressor(Estimator):
    """Predicts numbers for each row by a linear model; mirrors `tf.estimator.LinearRegressor`.

    Arguments are those of `LinearClassifier`, with `label_dimension`, the numbers in the label of a
    row, 1 by default, instead of `n_classes` and `label_vocabulary`.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        sparse_combiner: str = "sum",
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        linear = Linear(feature_columns, optimizer, sparse_combiner)
        model_fn = _linear_model_fn(head, linear)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class LinearEstimator(Estimator):
    """A linear model with your own head; mirrors `tf.estimator.LinearEstimator`.

    Arguments are those of `LinearClassifier`, with `head`, a `Head`, which defines loss, metrics,
    predictions and signatures, instead of those about labels and their loss.

    Examples:
        Counts, whose logarithm is linear:

        >>> from tfx_tpu_trainer.estimator import LinearEstimator, PoissonRegressionHead, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> hours = np.array([0.0, 1.0, 2.0], np.float32)
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"hour": hours}, np.array([1, 3, 7]), num_epochs=None, shuffle=False
        ... )
        >>> hour = tf.feature_column.numeric_column("hour")
        >>> estimator = LinearEstimator(PoissonRegressionHead(), [hour], model_dir="runs/counts")
        >>> estimator = estimator.train(input_fn, max_steps=5)
        >>> print(estimator.get_variable_value("linear/linear_model/hour/weights").shape)
        (1, 1)
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        linear = Linear(feature_columns, optimizer, sparse_combiner)
        model_fn = _linear_model_fn(head, linear)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1LinearClassifier(Estimator):
    """Predicts the class of each row by a linear model.

    Mirrors `tf.compat.v1.estimator.LinearClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.LinearClassifier`, except for an `optimizer` of `tf.compat.v1.train`; a `loss_reduction`
    of `tf.compat.v1.losses.Reduction`, by default the sum; and `partitioner`, which cuts the variables of the model
    over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: V1Optimizer | None = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Callable[..., Any] | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = _v1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        linear = Linear(feature_columns, optimizer, sparse_combiner)
        model_fn = _v1_linear_model_fn(head, linear, partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1LinearRegressor(Estimator):
    """Predicts numbers for each row by a linear model.

    Mirrors `tf.compat.v1.estimator.LinearRegressor`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.LinearRegressor` as those of `estimator.v1.LinearClassifier` do.
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: V1Optimizer | None = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Callable[..., Any] | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = _v1.RegressionHead(label_dimension, weight_column, loss_reduction=loss_reduction)
        linear = Linear(feature_columns, optimizer, sparse_combiner)
        model_fn = _v1_linear_model_fn(head, linear, partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1LinearEstimator(Estimator):
    """A linear model with your own head.

    Mirrors `tf.compat.v1.estimator.LinearEstimator`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.LinearEstimator` as those of `estimator.v1.LinearClassifier` do.
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: V1Optimizer | None = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Callable[..., Any] | None = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        linear = Linear(feature_columns, optimizer, sparse_combiner)
        model_fn = _v1_linear_model_fn(head, linear, partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
