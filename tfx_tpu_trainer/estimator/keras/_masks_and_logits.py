"""What Keras hangs on the outputs of a model, carried to where its metrics are computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.estimator.keras._tf_private import (
    logits_of,
    mask_of,
    put_logits,
    put_mask,
)

_ACTIVATIONS: Final[Mapping[str, Callable[..., tf.Tensor]]] = {
    "Softmax": tf.nn.softmax,
    "Sigmoid": tf.sigmoid,
}


@dataclasses.dataclass(frozen=True)
class MasksAndLogits:
    """Masks and logits of a model's outputs, in the order of `tf.nest.flatten`.

    Losses and metrics weigh rows with the mask. The crossentropies compute with the logits in the
    output's place, whichever activation made the output of them: `binary_crossentropy` of a softmax
    takes the softmax's logits for a sigmoid's. So a metric that sees probabilities alone gives
    other numbers than `model.evaluate`.

    Attributes:
        masks: The mask of each output, or `None`.
        logits: The logits of each output, or `None`.
        activations: Of an output without Keras's mark that a softmax or a sigmoid op made, that
            op's type: Keras looks at the op then. `None` for others.
    """

    masks: list[tf.Tensor | None]
    logits: list[tf.Tensor | None]
    activations: list[str | None]

    @classmethod
    def of(cls, outputs: Any) -> MasksAndLogits:
        """Reads what Keras hung on the outputs."""
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
        """The tensors, as `with_tensors` takes them."""
        return [self.masks, self.logits]

    def with_tensors(self, tensors: list[Any]) -> MasksAndLogits:
        """Returns the marks with others, such as copies, in the place of their tensors."""
        masks, logits = tensors
        return MasksAndLogits(list(masks), list(logits), self.activations)

    def put(self, outputs: Any) -> Any:
        """Hangs the marks on outputs."""
        marked = []
        for output, mask, logits, activation in zip(
            tf.nest.flatten(outputs), self.masks, self.logits, self.activations
        ):
            made = _ACTIVATIONS[activation](logits) if activation else output
            if mask is not None:
                put_mask(made, mask)
            if logits is not None and not activation:
                put_logits(made, logits)
            marked.append(made)
        return tf.nest.pack_sequence_as(outputs, marked)
