"""A scaffold that saves objects and brings nothing else."""

from __future__ import annotations

import tensorflow as tf

v1 = tf.compat.v1


class ObjectScaffold(v1.train.Scaffold):
    """A `Scaffold(saver=tf.train.Checkpoint(...))` of this package's own.

    A user's Scaffold is refused under a `tf.distribute` strategy, since its ops are of a session
    that makes no steps there. This one is not: a saver reads and writes variables only, which the
    session has. Models that know their objects, such as a Keras model, are saved through it.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        """Makes a scaffold.

        Args:
            checkpoint: Objects of the default graph: models, optimizers, variables.
        """
        super().__init__(saver=checkpoint)
