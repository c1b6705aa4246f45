"""A Keras model's forward pass, its loss and its training step, as functions to be traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator.keras import _inputs
from tfx_tpu_trainer.estimator.keras._keras_model import KerasModel
from tfx_tpu_trainer.estimator.keras._masks_and_logits import MasksAndLogits

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The copies of a model that train together: cores, or replicas of a strategy.

    Attributes:
        number: How many there are.
        optimizers_sum: Whether optimizers of a graph sum gradients themselves, as they do where
            `tf.distribute` shows them a strategy.
    """

    number: int
    optimizers_sum: bool

    @classmethod
    def of_this_call(cls) -> Replicas:
        """Tells what the code that calls a model_fn has announced."""
        shown = tf.distribute.get_strategy().num_replicas_in_sync
        return cls(max(shown, tf_private.number_of_replicas()), shown > 1)


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a traced pass gives; all tensors are of the trace.

    Attributes:
        outputs: The outputs, in the model's own structure.
        names: Their names, in the order of `tf.nest.flatten`.
        marks: What Keras hung on them.
        loss: The total loss; `None` in mode `"infer"`.
        gradients: Of each trainable variable the gradient or `None`; empty where Keras's own
            optimizer applies them within the trace, or nothing is trained.
    """

    outputs: Any
    names: list[str]
    marks: MasksAndLogits
    loss: tf.Tensor | None = None
    gradients: Sequence[Any] = ()


def predict(model: KerasModel, features: Any) -> Forward:
    """Computes the outputs as for a prediction."""
    outputs = model.call(_inputs.model_inputs(model, features), training=False)
    return _forward(model, outputs)


def evaluate(model: KerasModel, features: Any, labels: Any, weights: Any) -> Forward:
    """Computes outputs and loss as for an evaluation."""
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
    """Makes a training step.

    Args:
        model: The model.
        features: Features.
        labels: Labels, or `None`.
        weights: Sample weights, or `None`.
        optimizer: One of Keras's own that works in a `tf.function`, built; `None` leaves applying
            the gradients to the caller.
        replicas: Over which gradients are combined: averaged where the losses are means over rows, else summed.

    Returns:
        What the step gives.

    Raises:
        ValueError: If there is nothing to train, or some losses are means and others sums, and there
            are several replicas.
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
            # What does not come from rows is in each replica's loss, and counts once.
            once = model.regularization()
            objective = loss - once + once / replicas.number
        scaled = optimizer.scale_loss(objective) if hasattr(optimizer, "scale_loss") else objective
    if hasattr(optimizer, "compute_gradients"):
        pairs = list(optimizer.compute_gradients(scaled, variables, tape=tape))
        gradients = [gradient for gradient, _ in pairs]
    else:
        gradients = tape.gradient(scaled, variables)
    if replicas.number > 1:
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
    features = _inputs.model_inputs(model, features)
    outputs = model.call(features, training=training)
    names = model.output_names(outputs)
    if labels is None and model.losses_are_sums:
        raise ValueError(
            f"input_fn returns no labels, but the loss {model.model.loss!r} of the Keras model "
            f"compares the outputs {names} with them. Let it return (features, labels)."
        )
    labels = _inputs.model_labels(names, outputs, labels)
    each = _inputs.model_weights(names, weights)
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
