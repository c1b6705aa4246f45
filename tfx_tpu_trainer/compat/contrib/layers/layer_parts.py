"""What the layers share: pairs of numbers, channels, and what comes after the product with the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.variables import model_variable
from tfx_tpu_trainer.compat.contrib.named_outputs import get_variable_collections

Activation = Callable[[tf.Tensor], tf.Tensor] | None


def several(value: Any, count: int, name: str) -> list[int]:
    """Returns a number for each spatial axis.

    Args:
        value: One number for all, or one for each.
        count: How many axes there are.
        name: The argument's name, for the error.

    Raises:
        ValueError: If it is neither, or a number is below 1.
    """
    numbers = [value] * count if isinstance(value, int) else list(value)
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count or any(int(each) < 1 for each in numbers):
        raise ValueError(f"{name} takes a positive integer, or {count} of them; got {value!r}.")
    return [int(each) for each in numbers]


def check_data_format(data_format: str | None, *known: str) -> bool:
    """Returns whether channels come first.

    Args:
        data_format: `None` for channels last.
        *known: What it may be.

    Raises:
        ValueError: If it is something else.
    """
    if data_format is not None and data_format not in known:
        raise ValueError(f"data_format is one of {', '.join(known)}; got {data_format!r}.")
    return data_format is not None and data_format.startswith("NC")


def channels_of(inputs: tf.Tensor, channels_first: bool) -> int:
    """Returns how many channels there are.

    Args:
        inputs: A tensor.
        channels_first: Whether they are the second axis; else they are the last.

    Raises:
        ValueError: If that is not known.
    """
    if inputs.shape.rank is None:
        raise ValueError(f"The layer needs inputs of known rank; {inputs.name} has none.")
    channels = inputs.shape[1 if channels_first else -1]
    if channels is None:
        raise ValueError(
            f"The number of channels must be known; {inputs.name} has the shape {inputs.shape}."
        )
    return int(channels)


def parameter(
    name: str,
    shape: Sequence[int],
    inputs: tf.Tensor,
    *,
    initializer: Any,
    regularizer: Any,
    collections: Any,
    trainable: bool,
    key: str | None = None,
) -> tf.Variable:
    """Makes a variable of a layer, of its inputs' type.

    Args:
        name: Its name in the layer's scope.
        shape: Its shape.
        inputs: The layer's inputs.
        initializer: Makes its first value.
        regularizer: Makes a loss of it, or `None`.
        collections: The layer's `variables_collections`.
        trainable: Whether optimizers update it.
        key: What it is called in those, where that is not its name. Defaults to `None`.

    Returns:
        The variable.
    """
    return model_variable(
        name,
        shape=list(shape),
        dtype=inputs.dtype.base_dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=get_variable_collections(collections, key or name),
    )


def normalized_or_biased(
    outputs: tf.Tensor,
    channels: int,
    *,
    normalizer_fn: Callable[..., tf.Tensor] | None,
    normalizer_params: Mapping[str, Any] | None,
    biases_initializer: Any,
    biases_regularizer: Any,
    variables_collections: Any,
    trainable: bool,
    data_format: str | None = None,
) -> tf.Tensor:
    """Normalizes a layer's outputs, or adds `biases` where there is no normalizer.

    Args:
        outputs: The product with the weights.
        channels: Its channels.
        normalizer_fn: The layer's.
        normalizer_params: The layer's.
        biases_initializer: The layer's; `None` for no biases.
        biases_regularizer: The layer's.
        variables_collections: The layer's.
        trainable: The layer's.
        data_format: The layer's. Defaults to `None`, channels last.

    Returns:
        A tensor of the same shape.
    """
    if normalizer_fn is not None:
        return normalizer_fn(outputs, **(normalizer_params or {}))
    if biases_initializer is None:
        return outputs
    biases = parameter(
        "biases",
        [channels],
        outputs,
        initializer=biases_initializer,
        regularizer=biases_regularizer,
        collections=variables_collections,
        trainable=trainable,
    )
    return tf.nn.bias_add(
        outputs, biases, "NC.." if data_format and data_format.startswith("NC") else None
    )
