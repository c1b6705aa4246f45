"""Implements layers without variables: pooling, dropout and reshaping."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.arg_scope import add_arg_scope, smart_cond
from tfx_tpu_trainer.compat.contrib.layers.utils import (
    check_data_format,
    collect_named_outputs,
    several,
)

v1 = tf.compat.v1


def _pooling(pool: Callable[..., tf.Tensor], name: str, default_scope: str, what: str) -> Any:
    def pool2d(
        inputs: Any,
        kernel_size: Any,
        stride: Any = 2,
        padding: str = "VALID",
        data_format: str = "NHWC",
        outputs_collections: Any = None,
        scope: str | None = None,
    ) -> tf.Tensor:
        check_data_format(data_format, "NHWC", "NCHW")
        with v1.name_scope(scope, default_scope, [inputs]) as name_scope:
            outputs = pool(
                tf.convert_to_tensor(inputs),
                several(kernel_size, 2, "kernel_size"),
                several(stride, 2, "stride"),
                padding.upper(),
                data_format,
            )
            return collect_named_outputs(outputs_collections, name_scope, outputs)

    pool2d.__name__ = pool2d.__qualname__ = name
    pool2d.__doc__ = f"""Takes the {what} of each window.

    Args:
        inputs: A tensor of four axes.
        kernel_size: The window's size: an integer or two.
        stride: The step between windows: an integer or two. Defaults to 2.
        padding: `"SAME"` or `"VALID"`. Defaults to `"VALID"`.
        data_format: `"NHWC"` or `"NCHW"`. Defaults to `"NHWC"`.
        outputs_collections: Collections of the output. Defaults to `None`.
        scope: The name scope. Defaults to `None`, `{default_scope}`.

    Returns:
        A tensor of four axes.

    Raises:
        ValueError: If an argument is none of those named.
    """
    return add_arg_scope(pool2d)


max_pool2d = _pooling(tf.nn.max_pool2d, "max_pool2d", "MaxPool2D", "greatest value")
"""Takes the greatest value of each window, `[batch, height, width, channels]` by default."""
avg_pool2d = _pooling(tf.nn.avg_pool2d, "avg_pool2d", "AvgPool2D", "mean")
"""Takes the mean of each window, with the arguments of `max_pool2d`."""


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> tf.Tensor:
    """Sets values to 0 at random, and scales the others so that the sum stays the same.

    Args:
        inputs: A tensor.
        keep_prob: The probability that a value stays: a number or a scalar. Defaults to 0.5.
        noise_shape: The shape of the random choices, which an axis of size 1 shares. Defaults to `None`, that of the
            inputs.
        is_training: Whether to drop values: a bool, or a tensor. Defaults to `True`.
        outputs_collections: Collections of the output. Defaults to `None`.
        scope: The variable scope. Defaults to `None`, `Dropout`.
        seed: Makes the choices reproducible. Defaults to `None`.

    Returns:
        A tensor of the shape of `inputs`.
    """
    with v1.variable_scope(scope, "Dropout", [inputs]) as variable_scope:
        inputs = tf.convert_to_tensor(inputs)
        outputs = smart_cond(
            is_training,
            lambda: tf.nn.dropout(inputs, 1 - keep_prob, noise_shape=noise_shape, seed=seed),
            lambda: tf.identity(inputs),
        )
        return collect_named_outputs(outputs_collections, variable_scope.name, outputs)


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: str | None = None) -> tf.Tensor:
    """Flattens all axes after the first into one.

    Args:
        inputs: A tensor of two axes or more.
        outputs_collections: Collections of the output. Defaults to `None`.
        scope: The name scope. Defaults to `None`, `Flatten`.

    Returns:
        A tensor of two axes.
    """
    with v1.name_scope(scope, "Flatten", [inputs]) as name_scope:
        inputs = tf.convert_to_tensor(inputs)
        rest = inputs.shape[1:]
        if rest.is_fully_defined():
            # The number of columns stays known, and an empty batch has a shape.
            outputs = tf.reshape(inputs, [tf.shape(inputs)[0], rest.num_elements()])
            outputs.set_shape([inputs.shape[0], rest.num_elements()])
        else:
            outputs = tf.reshape(inputs, [tf.shape(inputs)[0], -1])
            outputs.set_shape([inputs.shape[0], None])
        return collect_named_outputs(outputs_collections, name_scope, outputs)


@add_arg_scope
def softmax(logits: Any, scope: Any = None) -> tf.Tensor:
    """Turns the values along the last axis into probabilities.

    Args:
        logits: A tensor of two axes or more.
        scope: The variable scope. Defaults to `None`, `softmax`.

    Returns:
        A tensor of the same shape.
    """
    with v1.variable_scope(scope, "softmax", [logits]):
        return tf.nn.softmax(logits)


def repeat(
    inputs: Any, repetitions: int, layer: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Applies a layer several times, each time in a separate variable scope.

    Args:
        inputs: The first layer's inputs.
        repetitions: How many times.
        layer: The layer; it takes a `scope`.
        *args: Its arguments after the inputs.
        **kwargs: Its other arguments; `scope` is the outer scope, and each layer's scope is its name with `_1`, `_2`
            and so on.

    Returns:
        The last layer's output.
    """
    scope = kwargs.pop("scope", None)
    with v1.variable_scope(scope, "Repeat", [inputs]):
        outputs = tf.convert_to_tensor(inputs)
        function = getattr(layer, "func", layer)
        name = scope or getattr(layer, "__name__", getattr(function, "__name__", "repeat"))
        for number in range(1, repetitions + 1):
            outputs = layer(outputs, *args, **kwargs, scope=f"{name}_{number}")
        return outputs
