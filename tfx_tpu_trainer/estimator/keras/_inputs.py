"""From what input_fn returns to what a Keras model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel

v1 = tf.compat.v1

_SPARSE: Final = v1.SparseTensorValue
_COMPOSITE: Final = (tf.SparseTensor, tf.RaggedTensor)
_WITH_WEIGHTS: Final = {"features", "sample_weights"}


class MissingKeysError(KeyError):
    """Features, labels or sample weights lack what the model asks for."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would quote it."""
        return str(self.args[0])


def split_weights(features: Any) -> tuple[Any, Any]:
    """Takes features and sample weights apart."""
    if isinstance(features, Mapping) and set(features) == _WITH_WEIGHTS:
        return as_tensors(features["features"]), _as_tensor(features["sample_weights"])
    return as_tensors(features), None


def model_inputs(keras_model: KerasModel, features: Any) -> Any:
    """Returns features in the structure that the model takes."""
    if not keras_model.is_functional:
        return features
    structure = keras_model.input_structure
    names = keras_model.input_names
    if isinstance(features, Mapping) and isinstance(structure, Mapping):
        # The keys of the model's own dict come first, where they are not the names of the layers.
        names = sorted(structure) if set(structure) <= set(features) else names
    tensors = _in_order(features, names, "features", "inputs")
    if len(tensors) != len(names):
        raise ValueError(
            f"The Keras model has {len(names)} inputs, {names}; input_fn returns {len(tensors)} "
            f"features: {features!r}. Give a dict by these names, or a list in this order."
        )
    return tf.nest.pack_sequence_as(structure, tensors)


def model_labels(names: Sequence[str], outputs: Any, labels: Any) -> Any:
    """Returns labels in the structure of the model's outputs."""
    if labels is None:
        return None
    if isinstance(labels, Mapping) and isinstance(outputs, Mapping) and set(outputs) <= set(labels):
        names = sorted(outputs)
    tensors = _in_order(labels, names, "labels", "outputs")
    if not isinstance(labels, (Mapping, list, tuple)):
        # As with Keras, lone labels are those of all outputs.
        tensors = tensors * len(names)
    if len(tensors) != len(names):
        raise ValueError(
            f"The Keras model has {len(names)} outputs, {list(names)}; input_fn returns "
            f"{len(tensors)} labels: {labels!r}. Give a dict by these names, or a list in this "
            "order."
        )
    return tf.nest.pack_sequence_as(outputs, tensors)


def model_weights(names: Sequence[str], weights: Any) -> list[tf.Tensor | None] | None:
    """Returns sample weights, one for each output."""
    if weights is None or (isinstance(weights, Sequence) and not weights):
        return None
    if isinstance(weights, Mapping):
        unknown = sorted(set(weights) - set(names))
        if unknown:
            raise ValueError(
                f"Unknown entries in sample_weights dictionary: {unknown}. Only expected following "
                f"keys: {list(names)}."
            )
        return [weights.get(name) for name in names]
    if isinstance(weights, Sequence):
        if len(weights) != len(names):
            raise ValueError(
                f"Provided `sample_weights` was a list of {len(weights)} elements, but the model "
                f"has {len(names)} outputs, {list(names)}. You should provide one "
                "`sample_weights` array per model output."
            )
        return list(weights)
    return [weights] * len(names)


def _in_order(given: Any, names: Sequence[str], what: str, of_model: str) -> list[Any]:
    if isinstance(given, Mapping):
        missing = sorted(set(names) - set(given))
        if missing:
            raise MissingKeysError(
                f"The dictionary passed into {what} does not cover requested {of_model} keys "
                f"defined in the keras model.\n\tExpected keys: {sorted(names)}\n\t{what} keys: "
                f"{sorted(map(str, given))}\n\tMissed keys: {missing}"
            )
        return [given[name] for name in names]
    return list(given) if isinstance(given, (list, tuple)) else [given]


def as_tensors(structure: Any) -> Any:
    """Returns a structure with tensors for arrays, numbers and nested lists of numbers."""
    if isinstance(structure, Mapping):
        return {key: _as_tensor(value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and not isinstance(structure, _SPARSE):
        return [_as_tensor(value) for value in structure]
    if structure is None or isinstance(structure, _COMPOSITE):
        return structure
    return v1.convert_to_tensor_or_sparse_tensor(structure)


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, _SPARSE):
        leaves = tf.nest.flatten(value)
        if leaves and all(np.ndim(leaf) == 0 and _is_plain(leaf) for leaf in leaves):
            return tf.convert_to_tensor(value)
    return as_tensors(value)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex, str, bytes, np.generic))
