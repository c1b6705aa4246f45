"""Deep estimators: an input layer of feature columns, hidden layers, logits.

The layers are functions of tensors, which work with any version of Keras.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
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
    check_dense_columns,
    check_features,
    hidden_partitioner,
    input_partitioner,
    train_op_fn_of,
    trainable_variables,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads import Head, RegressionHead, _v1
from tfx_tpu_trainer.estimator.heads._classification import classification_head
from tfx_tpu_trainer.estimator.heads._head import check_head
from tfx_tpu_trainer.estimator.heads._losses import SUM_OVER_BATCH_SIZE
from tfx_tpu_trainer.estimator.heads._training import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1
_V1_RATE: Final = 0.05
# The original's value; some of its models diverged with Keras's default, 0.99.
_MOMENTUM: Final = 0.999
_EPSILON: Final = 0.001


class Deep(NamedTuple):
    """The columns, the layers and the optimizer of a deep model."""

    columns: Any
    optimizer: Any
    # Width of each hidden layer.
    units: Any
    # A function, a name that Keras knows, or `None`.
    activation_fn: Any
    # Share of the values that training drops, or `None`.
    dropout: Any
    # Whether each layer's output is normalized.
    batch_norm: bool

    def checked(self, *, allow_v1: bool, prefix: str = "") -> Deep:
        """Checks the columns and the hidden layers."""
        columns = check_dense_columns(self.columns, allow_v1=allow_v1)
        return self._replace(columns=columns).with_checked_layers(prefix)

    def with_checked_layers(self, prefix: str = "") -> Deep:
        """Checks the widths of the hidden layers and their dropout."""
        dropout = self.dropout
        if dropout is not None and not (isinstance(dropout, Real) and 0 <= float(dropout) < 1):
            raise ValueError(
                f"Invalid value {dropout!r} received for `rate`, expected a value between 0 and 1. "
                f"{prefix}dropout is the share of values that training drops, such as 0.5; give less than 1."
            )
        dropped = None if dropout is None else float(dropout)
        return self._replace(units=check_hidden_units(self.units), dropout=dropped)


def check_hidden_units(units: Any) -> tuple[int, ...]:
    """Checks the widths of hidden layers; a layer without units would crash TensorFlow."""
    widths = tuple(units) if isinstance(units, Iterable) and not isinstance(units, str) else None
    if widths is None or not all(
        isinstance(width, Real) and 1 <= float(width) < math.inf for width in widths
    ):
        raise ValueError(
            f"hidden_units must be the positive width of each hidden layer, such as [64, 32]; given: {units!r}."
        )
    # Programs compute widths, such as 64 * 0.7**i, and Keras rounds down, too.
    return tuple(int(width) for width in widths)


def dnn_logits(
    features: Any, mode: str, deep: Deep, units: int, *, tag: str = "", partitioner: Any = None
) -> tuple[tf.Tensor, list[tf.Operation]]:
    """Makes the model in the current variable scope; returns logits and, in training, updates of averages."""
    if isinstance(units, bool) or not isinstance(units, int):
        raise ValueError(f"units must be an int.  Given type: {type(units)}, value: {units!r}")
    training = mode == ModeKeys.TRAIN
    with v1.variable_scope("input_from_feature_columns", partitioner=partitioner):
        net = without_notice(v1.feature_column.input_layer)(features, deep.columns)
    given = deep.activation_fn
    activation = given if callable(given) else tf.keras.activations.get(given)
    all_updates: list[tf.Operation] = []
    for number, width in enumerate(deep.units):
        name = f"hiddenlayer_{number}"
        with v1.variable_scope(name, auxiliary_name_scope=False):
            net = activation(_dense(net, width))
        if deep.dropout is not None and training:
            net = tf.nn.dropout(net, rate=deep.dropout)
        if deep.batch_norm:
            with v1.variable_scope(f"{name}/batchnorm_{number}", auxiliary_name_scope=False):
                net, updates = _batch_normalization(net, training=training)
                all_updates += updates
        summarize_layer(net, f"{tag}{name}")
    with v1.variable_scope("logits", auxiliary_name_scope=False):
        logits = _dense(net, units)
    summarize_layer(logits, f"{tag}logits")
    return logits, all_updates


def v1_dnn_logits(features: Any, mode: str, deep: Deep, units: int, partitioner: Any) -> tf.Tensor:
    """Makes the model as `tf.compat.v1.estimator` does, with updates in `UPDATE_OPS`."""
    # Tags of V1's summaries have the scope twice.
    scope = v1.get_variable_scope().name
    tag = f"{scope}/" if scope else ""
    logits, updates = dnn_logits(features, mode, deep, units, tag=tag, partitioner=partitioner)
    for update in updates:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return logits


def summarize_layer(value: tf.Tensor, tag: str) -> None:
    """Summarizes a layer's output: its histogram and its share of zeros, except on cores."""
    if is_on_cores():
        return
    v1.summary.scalar(f"{tag}/fraction_of_zero_values", tf.math.zero_fraction(value))
    v1.summary.histogram(f"{tag}/activation", value)


def _dense(tensor: tf.Tensor, units: int) -> tf.Tensor:
    """Makes `kernel` and `bias` in the current variable scope and applies them."""
    kernel = v1.get_variable(
        "kernel", [tensor.shape[-1], units], initializer=v1.glorot_uniform_initializer()
    )
    bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(tensor, kernel), bias)


def _batch_normalization(
    tensor: tf.Tensor, *, training: bool
) -> tuple[tf.Tensor, list[tf.Operation]]:
    """Normalizes each column, with variables in the current variable scope."""
    width = [tensor.shape[-1]]
    gamma = v1.get_variable("gamma", width, initializer=v1.ones_initializer())
    beta = v1.get_variable("beta", width, initializer=v1.zeros_initializer())
    # The layer's partitioner splits kernels over parameter servers, but not averages.
    with v1.variable_scope(v1.get_variable_scope(), auxiliary_name_scope=False) as scope:
        scope.set_partitioner(None)
        moving_mean = _average("moving_mean", width, v1.zeros_initializer())
        moving_variance = _average("moving_variance", width, v1.ones_initializer())
    if not training:
        mean, variance, updates = moving_mean, moving_variance, []
    else:
        mean, variance = tf.nn.moments(tensor, axes=[0])
        updates = [_update(moving_mean, mean), _update(moving_variance, variance)]
    normalized = tf.nn.batch_normalization(tensor, mean, variance, beta, gamma, _EPSILON)
    return normalized, updates


def _average(name: str, shape: list[Any], initializer: Any) -> tf.Variable:
    return v1.get_variable(
        name,
        shape,
        initializer=initializer,
        trainable=False,
        use_resource=True,
        # Under a strategy, each replica keeps the averages of its own rows, and a checkpoint has their mean.
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def _update(average: tf.Variable, value: tf.Tensor) -> tf.Operation:
    return average.assign_sub((average - value) * (1 - _MOMENTUM), read_value=False)


def _dnn_model_fn(head: Any, deep: Deep) -> ModelFn:
    """Returns the model_fn of the deep estimators of `tf.estimator`."""
    check_head(head)
    deep = deep.checked(allow_v1=False)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        check_features(features)
        with v1.variable_scope("dnn", use_resource=True) as scope:
            logits, updates = dnn_logits(features, mode, deep, head.logits_dimension)
        train_op_fn = None
        if mode == ModeKeys.TRAIN:
            trained = Trained(optimizer_instance(deep.optimizer), trainable_variables(scope))
            train_op_fn = train_op_fn_of(head, [trained], updates)
        return head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
        )

    return model_fn


def _v1_dnn_model_fn(head: Any, deep: Deep, partitioner: Any) -> ModelFn:
    """Returns the model_fn of the deep estimators of `tf.compat.v1.estimator`."""
    check_head(head)
    deep = deep.checked(allow_v1=True)

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        instance = v1_optimizer_instance(deep.optimizer, _V1_RATE)
        check_features(features)
        of_inputs = input_partitioner(config, partitioner)
        with v1.variable_scope("dnn", partitioner=hidden_partitioner(config)):
            logits = v1_dnn_logits(features, mode, deep, head.logits_dimension, of_inputs)
            train_op_fn = v1_train_op_fn_of(head, [Trained(instance, None)])
            return head.create_estimator_spec(
                features=features, mode=mode, labels=labels, logits=logits, train_op_fn=train_op_fn
            )

    return model_fn


class DNNClassifier(Estimator):
    """Predicts the class of each row by a deep model; mirrors `tf.estimator.DNNClassifier`.

    Examples:
        >>> from tfx_tpu_trainer.estimator import DNNClassifier, inputs
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> ages = np.array([5.0, 15.0, 70.0, 80.0], np.float32)
        >>> input_fn = inputs.numpy_input_fn(
        ...     {"age": ages}, np.array([0, 0, 1, 1]), num_epochs=None, shuffle=False
        ... )
        >>> age = tf.feature_column.numeric_column("age", normalizer_fn=lambda years: years / 100)
        >>> estimator = DNNClassifier([8], [age], model_dir="runs/deep", optimizer="Adam")
        >>> metrics = estimator.train(input_fn, max_steps=10).evaluate(input_fn, steps=1)
        >>> print(metrics["global_step"], sorted(metrics)[:3])
        10 ['accuracy', 'accuracy_baseline', 'auc']
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
    ) -> None:
        """Checks the arguments of a classifier.

        Args:
            hidden_units: Width of each hidden layer.
            feature_columns: Dense columns of `tf.feature_column`; categorical ones wrapped in `indicator_column` or
                `embedding_column`.
            model_dir: Folder of checkpoints and events. Defaults to that of `config`, or else to a temporary folder.
            n_classes: Number of classes. Defaults to 2.
            weight_column: Name or numeric column of the feature that weights each row's loss. Defaults to `None`.
            label_vocabulary: Names of the classes, for string labels. Defaults to `None`: labels are integers.
            optimizer: A legacy Keras optimizer, 'Adagrad', 'Adam', 'Ftrl', 'RMSProp', 'SGD', or a function that returns
                one. Defaults to 'Adagrad'.
            activation_fn: Activation of the hidden layers. Defaults to ReLU.
            dropout: Share of the values that training drops, in [0, 1). Defaults to `None`.
            config: Configuration of the runs. Defaults to `RunConfig()`.
            warm_start_from: A checkpoint, a SavedModel or `WarmStartSettings` for initial values. Defaults to `None`.
            loss_reduction: A constant of `tf.losses.Reduction`. Defaults to the mean over the rows.
            batch_norm: Whether each hidden layer's output is normalized over the batch. Defaults to `False`.

        Raises:
            ValueError: If an argument is invalid, such as `n_classes` below 2.
        """
        head = classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        deep = Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _dnn_model_fn(head, deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNRegressor(Estimator):
    """Predicts numbers for each row by a deep model; mirrors `tf.estimator.DNNRegressor`.

    Arguments are those of `DNNClassifier`, with `label_dimension`, the numbers in the label of a
    row, 1 by default, instead of `n_classes` and `label_vocabulary`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = SUM_OVER_BATCH_SIZE,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        deep = Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _dnn_model_fn(head, deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNEstimator(Estimator):
    """A deep model with your own head; mirrors `tf.estimator.DNNEstimator`.

    Arguments are those of `DNNClassifier`, with `head`, a `Head`, which defines loss, metrics,
    predictions and signatures, instead of those about labels and their loss.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        deep = Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _dnn_model_fn(head, deep)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1DNNClassifier(Estimator):
    """Predicts the class of each row by a deep model.

    Mirrors `tf.compat.v1.estimator.DNNClassifier`. The arguments are those of
    `tfx_tpu_trainer.estimator.DNNClassifier`, except for an `optimizer` of `tf.compat.v1.train`; a `loss_reduction` of
    `tf.compat.v1.losses.Reduction`, by default the sum; and `input_layer_partitioner`, which cuts the variables of the
    columns over parameter servers, by default into slices of at least 64 MB.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: V1Optimizer = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = _v1.classification_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        deep = Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _v1_dnn_model_fn(head, deep, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1DNNRegressor(Estimator):
    """Predicts numbers for each row by a deep model.

    Mirrors `tf.compat.v1.estimator.DNNRegressor`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.DNNRegressor` as those of `estimator.v1.DNNClassifier` do.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: V1Optimizer = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = v1.losses.Reduction.SUM,
        batch_norm: bool = False,
    ) -> None:
        head = _v1.RegressionHead(label_dimension, weight_column, loss_reduction=loss_reduction)
        deep = Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _v1_dnn_model_fn(head, deep, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class V1DNNEstimator(Estimator):
    """A deep model with your own head.

    Mirrors `tf.compat.v1.estimator.DNNEstimator`. The arguments differ from those of
    `tfx_tpu_trainer.estimator.DNNEstimator` as those of `estimator.v1.DNNClassifier` do.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Iterable[Any],
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: V1Optimizer = "Adagrad",
        activation_fn: Any = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Callable[..., Any] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        deep = Deep(feature_columns, optimizer, hidden_units, activation_fn, dropout, batch_norm)
        model_fn = _v1_dnn_model_fn(head, deep, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
