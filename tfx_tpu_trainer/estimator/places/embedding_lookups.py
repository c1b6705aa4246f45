"""What passes between a traced model and the embedding tables outside of its program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.template import HostFunction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookups:
    """The tensors of one core's trace at which embeddings enter and leave it.

    The trace also computes what it receives, by ordinary lookups: a placement runs those, or
    lets embedding cores do it and cuts the trace here.

    Attributes:
        ids: Name of a feature -> its ids: sparse [samples, any], or dense [samples] where each
            sample has exactly one. A sample is a row, or a position of a row's sequence.
        weights: Name of a feature -> the weights of its ids, a sparse tensor; only of features that
            have weights.
        samples: Name of a feature -> its number of samples; `None` where the batch is not static.
        activations: Name of a feature -> what was looked up.
        lengths: Name of a feature of sequences -> the sequences' lengths.
        sent: Name of a feature -> the gradient of its activations; empty outside of training.
        step: The global step before the step, a vector of one element.
        tables: Name of a table -> its variable.
        update: Trains the tables, from the tensors of all cores; `None` outside of training.
    """

    ids: Mapping[str, tf.SparseTensor | tf.Tensor]
    weights: Mapping[str, tf.SparseTensor]
    samples: Mapping[str, int | None]
    activations: Mapping[str, tf.Tensor]
    lengths: Mapping[str, tf.Tensor]
    sent: Mapping[str, tf.Tensor]
    step: tf.Tensor
    tables: Mapping[str, tf.Variable]
    update: HostFunction | None

    @property
    def received(self) -> dict[str, tf.Tensor]:
        """What a core receives: activations and, under `"NAME, lengths"`, lengths."""
        lengths = {f"{name}, lengths": tensor for name, tensor in self.lengths.items()}
        return {**self.activations, **lengths}
