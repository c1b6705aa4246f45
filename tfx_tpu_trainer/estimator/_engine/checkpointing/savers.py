"""Chooses what saves a session: the saver, and the hooks that call it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import AsyncSaves
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import write_errors_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.graph_files import (
    GraphOnceScaffold,
    converted_once,
    write_as_text,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import check_fits_graph
from tfx_tpu_trainer.estimator._engine.settings import SessionSettings, folder_of

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

    A user's Scaffold is refused under `tf.distribute`, since its ops are of a session
    that makes no steps there. This one is not: a saver reads and writes variables only, which the
    session has. Models that know their objects, such as a Keras model, are saved through it.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
        """Makes a scaffold."""
        super().__init__(saver=checkpoint)


def choose_saver_hooks(
    hooks: Sequence[v1.train.SessionRunHook],
    settings: SessionSettings,
    *,
    loss: tf.Tensor,
    scaffold: v1.train.Scaffold,
    steps_per_call: int,
    listeners: Sequence[v1.train.CheckpointSaverListener],
    in_thread: bool,
) -> list[v1.train.CheckpointSaverHook]:
    """Returns the hooks that save: the caller's and the model's own, or else a new one."""
    save_secs, save_steps = settings.save_checkpoints_secs, settings.save_checkpoints_steps
    saving = [hook for hook in hooks if isinstance(hook, v1.train.CheckpointSaverHook)]
    if saving:
        # As in the original: of several hooks that save, the first tells the listeners.
        tf_private.add_checkpoint_listeners(saving[0], listeners)
    elif save_secs or save_steps:
        saving = [
            FiniteSaverHook(
                folder_of(settings),
                loss=loss,
                save_secs=save_secs,
                save_steps=save_steps,
                scaffold=scaffold,
                listeners=list(listeners),
                save_graph_def=settings.checkpoint_save_graph_def,
                in_thread=in_thread,
            )
        ]
        first_secs = settings.first_checkpoint_secs
        if save_secs and first_secs and first_secs < save_secs:
            tf_private.set_timer(saving[0], GrowingTimer(first_secs, save_secs))
    elif listeners:
        raise ValueError(
            "There should be a CheckpointSaverHook to use saving_listeners, and checkpoints are "
            "switched off: set one of RunConfig.save_checkpoints_steps or "
            "RunConfig.save_checkpoints_secs."
        )
    for hook in saving:
        tf_private.set_steps_per_run(hook, steps_per_call)
    return saving


class _MetaGraphs(v1.train.CheckpointSaverListener):
    """Lets a hook write the .meta files that it has been kept from writing with the graph's text."""

    def __init__(self, hook: v1.train.CheckpointSaverHook) -> None:
        self._hook = hook

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        del session, global_step_value
        tf_private.set_writes_graph(self._hook, True)


class GrowingTimer:
    """A `SecondOrStepTimer` whose intervals double until they are as long as they are to be."""

    def __init__(self, first_secs: float, longest_secs: float) -> None:
        self._first_secs = first_secs
        self._longest_secs = longest_secs
        self.reset()

    def reset(self) -> None:
        """Begins again."""
        self._secs = self._first_secs
        self._step: int | None = None
        self._time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether it is time; the first time that it is asked it is."""
        if self._time is None:
            return True
        return step != self._step and time.time() >= self._time + self._secs

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Takes note of a checkpoint; returns the seconds and steps since the one before."""
        now = time.time()
        elapsed: tuple[float | None, int | None] = (None, None)
        if self._time is not None and self._step is not None:
            elapsed = (now - self._time, step - self._step)
            # What falls due early, at the end of a training, makes no interval longer.
            if now >= self._time + self._secs:
                self._secs = min(2 * self._secs, self._longest_secs)
        self._time, self._step = now, step
        return elapsed

    def last_triggered_step(self) -> int | None:
        """Returns the step of the last checkpoint."""
        return self._step


class FiniteSaverHook(v1.train.CheckpointSaverHook):
    """A CheckpointSaverHook that passes over a step whose loss is NaN.

    The saver runs before the hook that stops at a NaN; without this, the last checkpoint could
    be the very one that must not be gone on from.

    The first checkpoint of a session and the last one are written while the training waits. Those in between may be
    written by a thread, from a copy; whoever must hear of them at once keeps them from it (see `AsyncSaves`).
    """

    def __init__(
        self,
        checkpoint_dir: str,
        *,
        loss: tf.Tensor,
        scaffold: v1.train.Scaffold,
        in_thread: bool = False,
        **kwargs: Any,
    ) -> None:
        """Watches a loss."""
        self._writes_graph = kwargs.get("save_graph_def", True)
        listeners = kwargs.pop("listeners", None) or ()
        if self._writes_graph:
            listeners = [_MetaGraphs(self), *listeners]
        self._writes = AsyncSaves(checkpoint_dir)
        self._in_thread = in_thread
        super().__init__(
            checkpoint_dir,
            scaffold=GraphOnceScaffold(scaffold, self._writes.write),
            listeners=listeners,
            **kwargs,
        )
        self._folder = checkpoint_dir
        self._loss = loss

    def begin(self) -> None:
        """Finds the global step, and who is to be told."""
        if self._in_thread:
            tf_private.join_checkpoint_listeners(self, self._writes.join)
        # What makes the writer has the default graph written to the events at once; the model's is, when it is final.
        with tf.Graph().as_default():
            v1.summary.FileWriterCache.get(self._folder)
        super().begin()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Saves the graph, and a checkpoint of where the training begins."""
        graph = v1.get_default_graph()
        with write_errors_explained(self._folder), converted_once(graph):
            if self._writes_graph:
                write_as_text(graph, os.path.join(self._folder, "graph.pbtxt"))
                tf_private.set_writes_graph(self, False)
            super().after_create_session(session, coord)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Adds the loss to what the hook fetches."""
        fetches = super().before_run(run_context).fetches
        return v1.train.SessionRunArgs({"step": fetches, "loss": self._loss})

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Saves when it is due, unless the loss is NaN."""
        is_nan = bool(np.isnan(run_values.results["loss"]))
        # The error of a NaN names the last checkpoint.
        self._writes.settle(run_context.session, wait=is_nan)
        if not is_nan:
            with write_errors_explained(self._folder), self._writes.allowed():
                super().after_run(
                    run_context, run_values._replace(results=run_values.results["step"])
                )

    def end(self, session: v1.Session) -> None:
        """Saves the last step."""
        self._writes.settle(session)
        with write_errors_explained(self._folder):
            super().end(session)

    def close(self) -> None:
        """Waits for a checkpoint that is being written when the training fails; see `AsyncSaves`."""
        self._writes.close()
