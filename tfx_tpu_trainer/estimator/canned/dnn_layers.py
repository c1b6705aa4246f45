"""Layers of a deep model, as functions of tensors: dense, batch normalization.

They need no Keras, and so run whichever Keras the process has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf

v1 = tf.compat.v1

# The original's: 0.99, Keras's default, made some of its models diverge.
_MOMENTUM: Final = 0.999
_EPSILON: Final = 0.001


def dense(tensor: tf.Tensor, units: int) -> tf.Tensor:
    """Makes `kernel` and `bias` in the current variable scope and applies them.

    Args:
        tensor: Float tensor [batch, width].
        units: Width of what is given back.
    """
    kernel = v1.get_variable(
        "kernel", [tensor.shape[-1], units], initializer=v1.glorot_uniform_initializer()
    )
    bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(tensor, kernel), bias)


def activation(given: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns an activation as a function.

    Args:
        given: A function, a name that Keras knows, or `None` for none.
    """
    return given if callable(given) else tf.keras.activations.get(given)


def batch_normalization(
    tensor: tf.Tensor, *, training: bool
) -> tuple[tf.Tensor, list[tf.Operation]]:
    """Normalizes each column, with variables in the current variable scope.

    Args:
        tensor: Float tensor [batch, width].
        training: Whether by mean and variance of the batch, rather than the moving ones.

    Returns:
        The normalized tensor, and in training the ops that update the moving averages.
    """
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
