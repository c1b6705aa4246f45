"""The passes of a Keras model that are traced: prediction, evaluation and training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel
from tfx_tpu_trainer.estimator.keras._tf_private import (
    logits_of,
    mask_of,
    put_logits,
    put_mask,
)

v1 = tf.compat.v1

_SPARSE: Final = v1.SparseTensorValue
_COMPOSITE: Final = (tf.SparseTensor, tf.RaggedTensor)
_WITH_WEIGHTS: Final = {"features", "sample_weights"}
_ACTIVATIONS: Final[Mapping[str, Callable[..., tf.Tensor]]] = {
    "Softmax": tf.nn.softmax,
    "Sigmoid": tf.sigmoid,
}


class MissingKeysError(KeyError):
    """Features, labels or sample weights lack keys of the model."""

    def __str__(self) -> str:
        """Returns the message without the quotes of a KeyError."""
        return str(self.args[0])


def split_weights(features: Any) -> tuple[Any, Any]:
    """Splits features from sample weights."""
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
        # A model of inputs={"a": Input(name="x")} is called with the key "a", though its layer is "x":
        # the model's own keys win if the features have all of them.
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
        # As in Keras, a single label serves all outputs.
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
    """Converts arrays, numbers and nested lists of numbers in a structure to tensors."""
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


@dataclasses.dataclass(frozen=True)
class MasksAndLogits:
    """Masks and logits of a model's outputs, in the order of `tf.nest.flatten`.

    Losses and metrics weight rows by the mask. Crossentropies use the logits in place of the output, with any
    activation: `binary_crossentropy` of a softmax takes the softmax's logits for a sigmoid's. So a metric that gets
    only probabilities differs from `model.evaluate`.
    """

    masks: list[tf.Tensor | None]
    logits: list[tf.Tensor | None]
    # The type of the softmax or sigmoid op of an output without Keras's mark, which Keras reads then;
    # `None` for others.
    activations: list[str | None]

    @classmethod
    def of(cls, outputs: Any) -> MasksAndLogits:
        """Reads Keras's marks from the outputs."""
        flat = tf.nest.flatten(outputs)
        logits, activations = [], []
        for output in flat:
            marked = logits_of(output)
            activation = None
            if marked is None and isinstance(output, tf.Tensor) and output.op.type in _ACTIVATIONS:
                activation = output.op.type
                (marked,) = output.op.inputs
            logits.append(marked)
            activations.append(activation)
        return cls([mask_of(output) for output in flat], logits, activations)

    @property
    def tensors(self) -> list[Any]:
        """The tensors, in the form that `with_tensors` takes."""
        return [self.masks, self.logits]

    def with_tensors(self, tensors: list[Any]) -> MasksAndLogits:
        """Returns the marks with other tensors, such as copies."""
        masks, logits = tensors
        return MasksAndLogits(list(masks), list(logits), self.activations)

    def put(self, outputs: Any) -> Any:
        """Sets the marks on outputs."""
        marked = []
        for output, mask, logits, activation in zip(
            tf.nest.flatten(outputs), self.masks, self.logits, self.activations
        ):
            # An output that Keras recognizes by its op needs such an op in this graph too.
            made = _ACTIVATIONS[activation](logits) if activation else output
            if mask is not None:
                put_mask(made, mask)
            if logits is not None and not activation:
                put_logits(made, logits)
            marked.append(made)
        return tf.nest.pack_sequence_as(outputs, marked)


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The copies of a model that train together: cores, or a strategy's replicas."""

    number: int
    # Whether optimizers of a graph sum gradients themselves, as under a visible `tf.distribute`
    # strategy.
    optimizers_sum: bool

    @classmethod
    def of_this_call(cls) -> Replicas:
        """Returns the replicas of the running model_fn."""
        shown = tf.distribute.get_strategy().num_replicas_in_sync
        return cls(max(shown, tf_private.number_of_replicas()), shown > 1)


@dataclasses.dataclass(frozen=True)
class Forward:
    """The results of a traced pass; all tensors are of the trace."""

    outputs: Any  # The outputs, in the model's own structure.
    names: list[str]  # Their names, in the order of `tf.nest.flatten`.
    marks: MasksAndLogits  # Keras's marks on them.
    loss: tf.Tensor | None = None  # The total loss; `None` in mode `"infer"`.
    # The gradient, or `None`, of each trainable variable; empty if Keras's own optimizer applies them
    # in the trace, or nothing is trained.
    gradients: Sequence[Any] = ()


def predict(model: KerasModel, features: Any) -> Forward:
    """Computes the outputs of a prediction."""
    outputs = model.call(model_inputs(model, features), training=False)
    return _forward(model, outputs)


def evaluate(model: KerasModel, features: Any, labels: Any, weights: Any) -> Forward:
    """Computes outputs and loss of an evaluation."""
    outputs, loss = _with_loss(model, features, labels, weights, training=False)
    return dataclasses.replace(_forward(model, outputs), loss=loss)


def train(
    model: KerasModel,
    features: Any,
    labels: Any,
    weights: Any,
    *,
    optimizer: Any,
    replicas: Replicas,
) -> Forward:
    """Makes a training step; without a built Keras optimizer, the caller applies the gradients.

    Replicas average the gradients if the losses are means over rows, and sum them otherwise.
    """
    variables = model.trainable_variables
    if not variables:
        raise ValueError(
            "The Keras model has no trainable variable: all its layers have trainable=False. Set "
            "trainable = True on the model or on a layer, and compile it again."
        )
    with tf.GradientTape() as tape:
        outputs, loss = _with_loss(model, features, labels, weights, training=True)
        objective = loss
        if replicas.number > 1 and _sums(model):
            # Each replica's loss includes the regularization, which the sum must contain only once.
            once = model.regularization()
            objective = loss - once + once / replicas.number
        scaled = optimizer.scale_loss(objective) if hasattr(optimizer, "scale_loss") else objective
    if hasattr(optimizer, "compute_gradients"):
        pairs = list(optimizer.compute_gradients(scaled, variables, tape=tape))
        gradients = [gradient for gradient, _ in pairs]
    else:
        gradients = tape.gradient(scaled, variables)
    if replicas.number > 1:
        # Gradients of means are divided by the number of replicas, then summed: here, or by an
        # optimizer that sums itself.
        share = 1 if _sums(model) else replicas.number
        left_out = optimizer is None and replicas.optimizers_sum
        gradients = [
            gradient if gradient is None else _combined(gradient, replicas, share, left_out)
            for gradient in gradients
        ]
    forward = dataclasses.replace(_forward(model, outputs), loss=loss)
    if optimizer is None:
        return dataclasses.replace(forward, gradients=gradients)
    optimizer.apply_gradients(list(zip(gradients, variables)))
    return forward


def _with_loss(
    model: KerasModel, features: Any, labels: Any, weights: Any, *, training: bool
) -> tuple[Any, tf.Tensor]:
    features = model_inputs(model, features)
    outputs = model.call(features, training=training)
    names = model.output_names(outputs)
    if labels is None and model.losses_are_sums:
        raise ValueError(
            f"input_fn returns no labels, but the loss {model.model.loss!r} of the Keras model "
            f"compares the outputs {names} with them. Let it return (features, labels)."
        )
    labels = model_labels(names, outputs, labels)
    each = model_weights(names, weights)
    packed = None if each is None else tf.nest.pack_sequence_as(outputs, each)
    loss = model.loss(features, labels, outputs, packed, training=training)
    if loss is None:
        raise ValueError(
            "The model cannot be compiled because it has no loss to optimize. Give "
            "model.compile(loss=...), or add one with add_loss."
        )
    return outputs, tf.reduce_sum(loss) if loss.shape.rank else loss


def _forward(model: KerasModel, outputs: Any) -> Forward:
    return Forward(
        outputs=tf.nest.map_structure(tf.convert_to_tensor, outputs),
        names=model.output_names(outputs),
        marks=MasksAndLogits.of(outputs),
    )


def _sums(model: KerasModel) -> bool:
    kinds = model.losses_are_sums
    if len(kinds) > 1:
        raise ValueError(
            f"Some of the losses {model.model.loss!r} are sums over rows and others means, but the "
            "gradients of several replicas can be combined in only one way. Give all of them the "
            "same reduction."
        )
    return True in kinds


def _combined(gradient: Any, replicas: Replicas, share: int, left_out: bool) -> tf.Tensor:
    tensor = tf.convert_to_tensor(gradient) / share
    if left_out:
        return tensor
    with tf_private.replicas(replicas.number):
        return v1.tpu.cross_replica_sum(tensor)
