"""The saver of a session: the default one, the model's own, or one of a tf.train.Checkpoint."""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_fit import check_fits_graph

v1 = tf.compat.v1

CHECKPOINTS = (tf.train.Checkpoint, v1.train.Checkpoint)
"""What a Scaffold accepts as a saver besides a tf.compat.v1.train.Saver."""


def fitted_scaffold(
    scaffold: v1.train.Scaffold,
    checkpoint_path: str | None,
    *,
    keep_max: int | None = 5,
    keep_every_n_hours: float | None = 10000,
) -> v1.train.Scaffold:
    """Makes a scaffold ready to restore a checkpoint, and checks that it fits the default graph.

    A tf.train.Checkpoint becomes the saver that writes and reads its like. The Scaffold does so
    itself, but only when the graph is final, and then keeps five checkpoints whatever the run was
    told. Must be called once the model is traced: what is added to the objects later is not saved.
    """
    if isinstance(scaffold.saver, CHECKPOINTS):
        saver = saver_of_objects(
            scaffold.saver, keep_max=keep_max, keep_every_n_hours=keep_every_n_hours
        )
        scaffold = v1.train.Scaffold(saver=saver, copy_from_scaffold=scaffold)
    if checkpoint_path:
        saver = scaffold.saver or next(iter(v1.get_collection(v1.GraphKeys.SAVERS)), None)
        if saver is None or isinstance(saver, v1.train.Saver):
            check_fits_graph(checkpoint_path, saver)
    return scaffold


def saver_of_objects(
    checkpoint: tf.train.Checkpoint,
    *,
    keep_max: int | None = 5,
    keep_every_n_hours: float | None = 10000,
) -> v1.train.Saver:
    """Makes a saver whose checkpoints `checkpoint.restore` can read, and the other way round."""
    return v1.train.Saver(
        var_list=tf_private.saveables_of_objects(checkpoint),
        sharded=True,
        max_to_keep=keep_max,
        keep_checkpoint_every_n_hours=keep_every_n_hours,
        save_relative_paths=True,
    )


def add_default_saver(*, keep_max: int | None, keep_every_n_hours: float | None) -> None:
    """Adds the saver of a graph whose model brought none."""
    saver = v1.train.Saver(
        sharded=True,
        max_to_keep=keep_max,
        keep_checkpoint_every_n_hours=keep_every_n_hours,
        # Hooks may still make variables.
        defer_build=True,
        # So that a model's folder can be moved.
        save_relative_paths=True,
    )
    v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


class ObjectScaffold(v1.train.Scaffold):
    """A `Scaffold(saver=tf.train.Checkpoint(...))` of this package's own.

    A user's Scaffold is refused under a `tf.distribute` strategy, since its ops are of a session
    that makes no steps there. This one is not: a saver reads and writes variables only, which the
    session has. Models that know their objects, such as a Keras model, are saved through it.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        """Makes a scaffold."""
        super().__init__(saver=checkpoint)
