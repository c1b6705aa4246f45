"""Finds out the gradient that a model's own optimizer takes with respect to its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()

_NAME = "tpu_embedding_gradient_tap"


class GradientTap:
    """Records gradients with respect to tensors that are no variables.

    A model differentiates what it likes: a loss that it scaled, as `CrossShardOptimizer` does, or
    clipped, or added to others. The tapped tensors are made to depend on a trainable variable, a
    stand-in of no effect, so that its optimizer goes through them; what comes by is recorded.
    """

    def __init__(self) -> None:
        """Makes the stand-in, in the default graph, before the model is built."""
        self._stand_in = v1.get_variable(
            _NAME,
            shape=[1],
            initializer=v1.zeros_initializer(),
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
        )
        self._value = self._stand_in.read_value()
        self._tapped: dict[str, tf.Tensor] = {}
        self._recorded: dict[str, tf.Tensor] = {}

    def tap(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a tensor of the same value for the model to use.

        Args:
            name: A name to ask for the gradient by.
            tensor: A float tensor.
        """

        @tf.custom_gradient
        def passed_on(stand_in: tf.Tensor, value: tf.Tensor) -> Any:
            def record(gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # Where a model differentiates more than once, the last time counts.
                self._recorded[name] = gradient
                return tf.zeros_like(stand_in), gradient

            return tf.identity(value), record

        self._tapped[name] = tensor
        tapped = passed_on(self._value, tensor)
        tapped.set_shape(tensor.shape)
        return tapped

    def close(self) -> Mapping[str, tf.Tensor]:
        """Ends the recording, after the model is built.

        The stand-in, and what the model's optimizer keeps of it, become local variables: they
        are not trained from here on and not saved.

        Returns:
            For each name its gradient; zeros, with a warning, where the model took none.
        """
        graph = v1.get_default_graph()
        trainable = graph.get_collection_ref(v1.GraphKeys.TRAINABLE_VARIABLES)
        trainable[:] = [variable for variable in trainable if variable is not self._stand_in]
        saved = graph.get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
        slots = [v for v in saved if v.op.name.startswith(f"{self._stand_in.op.name}/")]
        saved[:] = [variable for variable in saved if not any(variable is s for s in slots)]
        for slot in slots:
            graph.add_to_collection(v1.GraphKeys.LOCAL_VARIABLES, slot)
        missing = sorted(set(self._tapped) - set(self._recorded))
        if missing:
            _logger.warning(
                "The embeddings of %s have undefined gradients: the model does not use them, or "
                "its optimizer was given a var_list without all trainable variables. Gradients "
                "of zeros are taken instead.",
                missing,
            )
        return {
            name: self._recorded.get(name, tf.zeros_like(tensor))
            for name, tensor in self._tapped.items()
        }
