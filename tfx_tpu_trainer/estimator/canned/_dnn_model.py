"""The deep model: an input layer of feature columns, hidden layers, logits.

Its layers are functions of tensors: they need no Keras, and so run whichever Keras the process has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, Final, NamedTuple

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator._on_cores import is_on_cores
from tfx_tpu_trainer.estimator.canned import _columns as checks
from tfx_tpu_trainer.estimator.canned._partitions import hidden_partitioner, input_partitioner
from tfx_tpu_trainer.estimator.canned._train_ops import (
    Trained,
    train_op_fn_of,
    trainable_variables,
    v1_train_op_fn_of,
)
from tfx_tpu_trainer.estimator.heads._optimizers import optimizer_instance, v1_optimizer_instance

v1 = tf.compat.v1
_V1_RATE: Final = 0.05
# The original's: 0.99, Keras's default, made some of its models diverge.
_MOMENTUM: Final = 0.999
_EPSILON: Final = 0.001


class HiddenLayers(NamedTuple):
    """What stands between a deep model's input layer and its logits.

    Attributes:
        units: Width of each layer.
        activation_fn: A function, a name that Keras knows, or `None`.
        dropout: Share of the values that training drops, or `None`.
        batch_norm: Whether each layer's output is normalized.
    """

    units: Sequence[int]
    activation_fn: Any = tf.nn.relu
    dropout: float | None = None
    batch_norm: bool = False


def check_hidden_units(units: Any) -> tuple[int, ...]:
    """Checks the widths of hidden layers: TensorFlow ends the process at the first batch of a layer without a unit."""
    widths = tuple(units) if isinstance(units, Iterable) and not isinstance(units, str) else None
    if widths is None or not all(
        isinstance(width, Real) and 1 <= float(width) < math.inf for width in widths
    ):
        raise ValueError(
            f"hidden_units must be the positive width of each hidden layer, such as [64, 32]; given: {units!r}."
        )
    # Programs compute them, as 64 * 0.7**i, and Keras rounds down too.
    return tuple(int(width) for width in widths)


def hidden_layers(
    units: Any, activation_fn: Any, dropout: Any, batch_norm: bool, *, prefix: str = ""
) -> HiddenLayers:
    """Checks the widths of hidden layers and how many of their values are dropped."""
    if dropout is not None and not (isinstance(dropout, Real) and 0 <= float(dropout) < 1):
        raise ValueError(
            f"Invalid value {dropout!r} received for `rate`, expected a value between 0 and 1. "
            f"{prefix}dropout is the share of values that training drops, such as 0.5; give less than 1."
        )
    dropped = None if dropout is None else float(dropout)
    return HiddenLayers(check_hidden_units(units), activation_fn, dropped, batch_norm)


class DnnLogits(NamedTuple):
    """What a deep model gives.

    Attributes:
        logits: Float tensor [batch, units].
        variables: Its trainable variables.
        updates: Ops that update moving averages; none but in training.
    """

    logits: tf.Tensor
    variables: list[tf.Variable]
    updates: list[tf.Operation]


class Deep(NamedTuple):
    """What a deep model is made of.

    Attributes:
        columns: Dense feature columns, checked.
        optimizer: A name, an instance or a function.
        hidden: The hidden layers.
    """

    columns: Sequence[Any]
    optimizer: Any
    hidden: HiddenLayers


def dnn_logits(features: Any, mode: str, *, deep: Deep, units: int) -> DnnLogits:
    """Makes the deep model of `tf.estimator`, in a scope `dnn`."""
    with v1.variable_scope("dnn", use_resource=True) as scope:
        with v1.variable_scope("input_from_feature_columns"):
            net = without_notice(v1.feature_column.input_layer)(features, deep.columns)
        logits, updates = _layers(net, mode, deep.hidden, units, tag_prefix="")
        return DnnLogits(logits, trainable_variables(scope), updates)


def v1_dnn_logits(
    features: Any,
    mode: str,
    *,
    columns: Sequence[Any],
    hidden: HiddenLayers,
    units: int,
    partitioner: Any,
) -> tf.Tensor:
    """Makes the deep model of `tf.compat.v1.estimator` in the current variable scope.

    Updates of moving averages go to the collection `UPDATE_OPS`. `partitioner` is that of the input
    layer; the other arguments are those of `dnn_logits`.
    """
    with v1.variable_scope("input_from_feature_columns", partitioner=partitioner):
        net = without_notice(v1.feature_column.input_layer)(features, columns)
    prefix = v1.get_variable_scope().name
    logits, updates = _layers(net, mode, hidden, units, tag_prefix=f"{prefix}/" if prefix else "")
    for update in updates:
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return logits


def _layers(
    net: tf.Tensor,
    mode: str,
    hidden: HiddenLayers,
    units: int,
    *,
    tag_prefix: str,
) -> tuple[tf.Tensor, list[tf.Operation]]:
    """The layers above the input layer, in the current variable scope.

    The two versions of the estimators differ in the tags of their summaries only: those of V1 have
    the scope twice.
    """
    if isinstance(units, bool) or not isinstance(units, int):
        raise ValueError(f"units must be an int.  Given type: {type(units)}, value: {units!r}")
    training = mode == ModeKeys.TRAIN
    given = hidden.activation_fn
    activation = given if callable(given) else tf.keras.activations.get(given)
    all_updates: list[tf.Operation] = []
    for number, width in enumerate(hidden.units):
        name = f"hiddenlayer_{number}"
        with v1.variable_scope(name, auxiliary_name_scope=False):
            net = activation(_dense(net, width))
        if hidden.dropout is not None and training:
            net = tf.nn.dropout(net, rate=hidden.dropout)
        if hidden.batch_norm:
            with v1.variable_scope(f"{name}/batchnorm_{number}", auxiliary_name_scope=False):
                net, updates = _batch_normalization(net, training=training)
                all_updates += updates
        summarize_layer(net, f"{tag_prefix}{name}")
    with v1.variable_scope("logits", auxiliary_name_scope=False):
        logits = _dense(net, units)
    summarize_layer(logits, f"{tag_prefix}logits")
    return logits, all_updates


def summarize_layer(value: tf.Tensor, tag: str) -> None:
    """Summarizes a layer's output: its histogram, and how much of it is zero; not on cores."""
    if is_on_cores():
        return
    v1.summary.scalar(f"{tag}/fraction_of_zero_values", tf.math.zero_fraction(value))
    v1.summary.histogram(f"{tag}/activation", value)


def dnn_model_fn(*, head: Any, deep: Deep) -> Callable[..., Any]:
    """Returns the model_fn of the deep estimators of `tf.estimator`."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        del config
        checks.check_features(features)
        made = dnn_logits(features, mode, deep=deep, units=head.logits_dimension)
        train_op_fn = None
        if mode == ModeKeys.TRAIN:
            trained = Trained(optimizer_instance(deep.optimizer), made.variables)
            train_op_fn = train_op_fn_of(head, [trained], made.updates)
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            labels=labels,
            logits=made.logits,
            train_op_fn=train_op_fn,
        )

    return model_fn


def v1_dnn_model_fn(*, head: Any, deep: Deep, partitioner: Any) -> Callable[..., Any]:
    """Returns the model_fn of the deep estimators of `tf.compat.v1.estimator`."""

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        instance = v1_optimizer_instance(deep.optimizer, _V1_RATE)
        checks.check_features(features)
        with v1.variable_scope("dnn", partitioner=hidden_partitioner(config)):
            logits = v1_dnn_logits(
                features,
                mode,
                columns=deep.columns,
                hidden=deep.hidden,
                units=head.logits_dimension,
                partitioner=input_partitioner(config, partitioner),
            )
            trained = Trained(instance, None)
            return head.create_estimator_spec(
                features=features,
                mode=mode,
                labels=labels,
                logits=logits,
                train_op_fn=v1_train_op_fn_of(head, [trained]),
            )

    return model_fn


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
    # Averages are not cut over parameter servers.
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
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


def _update(average: tf.Variable, value: tf.Tensor) -> tf.Operation:
    return average.assign_sub((average - value) * (1 - _MOMENTUM), read_value=False)
