"""Shared by the layers: the collections of variables and outputs, sizes and channels, biases or a normalizer.

Its public names are those of `tf.contrib.slim.utils`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.contrib.framework.variables import model_variable

v1 = tf.compat.v1

__all__ = ["collect_named_outputs", "convert_collection_to_dict", "get_variable_collections"]


def collect_named_outputs(collections: Any, alias: str, outputs: Any) -> Any:
    """Puts a layer's output into collections, and the layer's name on it as an alias."""
    if collections:
        outputs.aliases = [*getattr(outputs, "aliases", ()), alias.removesuffix("/")]
        v1.add_to_collections(collections, outputs)
    return outputs


def convert_collection_to_dict(collection: str, clear_collection: bool = False) -> dict[str, Any]:
    """Returns the outputs in a collection by their aliases."""
    found = v1.get_collection(collection)
    if clear_collection:
        v1.get_default_graph().clear_collection(collection)
    return {
        alias: tensor for tensor in found for alias in getattr(tensor, "aliases", (tensor.op.name,))
    }


def get_variable_collections(variables_collections: Any, name: str) -> Sequence[str] | None:
    """Returns the collections that one variable of a layer goes into."""
    if isinstance(variables_collections, Mapping):
        return variables_collections.get(name)
    return variables_collections


Activation = Callable[[tf.Tensor], tf.Tensor] | None


def several(value: Any, count: int, name: str) -> list[int]:
    """Returns a number for each spatial axis."""
    numbers = [value] * count if isinstance(value, int) else list(value)
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count or any(int(each) < 1 for each in numbers):
        raise ValueError(f"{name} takes a positive integer, or {count} of them; got {value!r}.")
    return [int(each) for each in numbers]


def check_data_format(data_format: str | None, *known: str) -> bool:
    """Returns whether channels come first."""
    if data_format is not None and data_format not in known:
        raise ValueError(f"data_format must be one of {', '.join(known)}; got {data_format!r}.")
    return data_format is not None and data_format.startswith("NC")


def channels_of(inputs: tf.Tensor, channels_first: bool) -> int:
    """Returns the number of channels."""
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
    """Makes a variable of a layer, of its inputs' type."""
    return model_variable(
        name,
        shape=list(shape),
        dtype=inputs.dtype.base_dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=get_variable_collections(collections, key or name),
    )


# A layer passes all of its arguments on at once: `given` is `locals()` at its beginning, the arguments by name. Each
# layer has the names that are read here, except that fully_connected has no data_format.
def weights_of_layer(
    name: str, shape: Sequence[int], inputs: tf.Tensor, given: Mapping[str, Any]
) -> tf.Variable:
    """Makes the weights of a layer that has the arguments `given`."""
    return parameter(
        name,
        shape,
        inputs,
        initializer=given["weights_initializer"],
        regularizer=given["weights_regularizer"],
        collections=given["variables_collections"],
        trainable=given["trainable"],
        key="weights",
    )


def finished(outputs: tf.Tensor, channels: int, scope: str, given: Mapping[str, Any]) -> tf.Tensor:
    """Normalizes a layer's outputs, or adds `biases` without a normalizer; then activates and collects them."""
    if given["normalizer_fn"] is not None:
        outputs = given["normalizer_fn"](outputs, **(given["normalizer_params"] or {}))
    elif given["biases_initializer"] is not None:
        biases = parameter(
            "biases",
            [channels],
            outputs,
            initializer=given["biases_initializer"],
            regularizer=given["biases_regularizer"],
            collections=given["variables_collections"],
            trainable=given["trainable"],
        )
        channels_first = (given.get("data_format") or "").startswith("NC")
        outputs = tf.nn.bias_add(outputs, biases, "NC.." if channels_first else None)
    if given["activation_fn"] is not None:
        outputs = given["activation_fn"](outputs)
    return collect_named_outputs(given["outputs_collections"], scope, outputs)
