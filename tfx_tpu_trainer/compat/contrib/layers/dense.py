"""Layers of a matrix product, and the embeddings of ids."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import add_arg_scope
from tfx_tpu_trainer.compat.contrib.layers.initializers import xavier_initializer
from tfx_tpu_trainer.compat.contrib.layers.layer_parts import (
    Activation,
    channels_of,
    normalized_or_biased,
    parameter,
)
from tfx_tpu_trainer.compat.contrib.named_outputs import collect_named_outputs

v1 = tf.compat.v1


@add_arg_scope
def fully_connected(
    inputs: Any,
    num_outputs: Any,
    activation_fn: Activation = tf.nn.relu,
    normalizer_fn: Callable[..., tf.Tensor] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = xavier_initializer(),  # noqa: B008 - makes a function, as contrib did.
    weights_regularizer: Any = None,
    biases_initializer: Any = v1.zeros_initializer(),  # noqa: B008
    biases_regularizer: Any = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """Multiplies the last axis by `weights`, adds `biases`, and applies an activation.

    Its variables are in the variable scope `fully_connected`, `fully_connected_1` and so on.
    Semantics of `tf.contrib.layers.fully_connected` of TensorFlow 1.15.

    Args:
        inputs: A tensor of two axes or more, the last of known size.
        num_outputs: The size of the output's last axis.
        activation_fn: Applied to the output. Defaults to a ReLU; `None` for nothing.
        normalizer_fn: Called instead of adding biases. Defaults to `None`.
        normalizer_params: Its arguments. Defaults to `None`.
        weights_initializer: Makes the first weights. Defaults to `xavier_initializer()`.
        weights_regularizer: Makes a loss of them. Defaults to `None`.
        biases_initializer: Makes the first biases; `None` for no biases. Defaults to zeros.
        biases_regularizer: Makes a loss of them. Defaults to `None`.
        reuse: Whether the variables are those of an earlier call; it needs `scope`. Defaults to `None`, the enclosing
            scope's setting.
        variables_collections: Collections of the variables, or a dict of them by `"weights"` and
            `"biases"`. Defaults to `None`.
        outputs_collections: Collections of the output. Defaults to `None`.
        trainable: Whether optimizers update the variables. Defaults to `True`.
        scope: The variable scope. Defaults to `None`, `fully_connected` with a number if it is
            taken.

    Returns:
        A tensor with the axes of `inputs`, the last of size `num_outputs`.

    Raises:
        ValueError: If `num_outputs` is not an integer, or the inputs' rank or last size is not known.
    """
    if not isinstance(num_outputs, numbers.Integral):
        raise ValueError(f"num_outputs is an integer; got {num_outputs!r}.")
    with v1.variable_scope(scope, "fully_connected", [inputs], reuse=reuse) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        size = channels_of(inputs, channels_first=False)
        if inputs.shape.rank < 2:
            raise ValueError(f"fully_connected needs two axes or more; got shape {inputs.shape}.")
        weights = parameter(
            "weights",
            [size, int(num_outputs)],
            inputs,
            initializer=weights_initializer,
            regularizer=weights_regularizer,
            collections=variables_collections,
            trainable=trainable,
        )
        if inputs.shape.rank == 2:
            outputs = tf.matmul(inputs, weights)
        else:
            outputs = tf.tensordot(inputs, weights, [[inputs.shape.rank - 1], [0]])
            outputs.set_shape([*inputs.shape[:-1], num_outputs])
        outputs = normalized_or_biased(
            outputs,
            int(num_outputs),
            normalizer_fn=normalizer_fn,
            normalizer_params=normalizer_params,
            biases_initializer=biases_initializer,
            biases_regularizer=biases_regularizer,
            variables_collections=variables_collections,
            trainable=trainable,
        )
        if activation_fn is not None:
            outputs = activation_fn(outputs)
        return collect_named_outputs(outputs_collections, variable_scope.name, outputs)


linear = functools.partial(fully_connected, activation_fn=None)
relu = functools.partial(fully_connected, activation_fn=tf.nn.relu)
relu6 = functools.partial(fully_connected, activation_fn=tf.nn.relu6)
elu = functools.partial(fully_connected, activation_fn=tf.nn.elu)
