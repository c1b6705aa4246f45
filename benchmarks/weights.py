"""The variables of the models, by name."""

from __future__ import annotations

import dataclasses
import zlib

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Weight:
    """A variable of a model.

    Attributes:
        name: Its name in every framework's version of the model.
        shape: Its shape.
        stddev: Standard deviation of its initial values; 0 means that all are the mean.
        mean: Their mean.
        trainable: Whether the optimizer changes it.
    """

    name: str
    shape: tuple[int, ...]
    stddev: float = 0.0
    mean: float = 0.0
    trainable: bool = True

    def initial_value(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """The same values in every process and version of TensorFlow: they hang on the name only."""
        seed = (zlib.crc32(self.name.encode()) & 0x7FFFFFFF, 0)
        return tf.random.stateless_normal(
            self.shape, seed, mean=self.mean, stddev=self.stddev, dtype=dtype
        )
