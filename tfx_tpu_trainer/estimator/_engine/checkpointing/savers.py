"""Chooses the saver and the saver hooks of a session, and writes the files that hold its graph.

These files are graph.pbtxt, the .meta file next to each checkpoint, and the events. A Saver serializes the whole graph
for each checkpoint, which takes most of the time of a small model's checkpoint. Here the graph is serialized once and
written again until it changes: it is final, except for the loop of steps that is added early on and does not belong to
the model. TensorFlow's writers also convert the graph to a GraphDef for each file, four times before a training's first
step; `converted_once` lets them share one.
"""

import contextlib
import os
import time
import types
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import AsyncSaves
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import write_errors_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import check_fits_graph
from tfx_tpu_trainer.estimator._engine.template import SessionSettings, folder_of

v1 = tf.compat.v1


CHECKPOINTS = (tf.train.Checkpoint, v1.train.Checkpoint)
"""A saver that a Scaffold accepts in addition to a tf.compat.v1.train.Saver."""


def fitted_scaffold(
    scaffold: v1.train.Scaffold,
    checkpoint_path: str | None,
    *,
    keep_max: int | None = 5,
    keep_every_n_hours: float | None = 10000,
) -> v1.train.Scaffold:
    """Prepares a scaffold to restore a checkpoint, and checks that the checkpoint fits the default graph."""
    # A tf.train.Checkpoint becomes a saver of its objects. The Scaffold would do this itself, but only when the graph
    # is final, and would always keep five checkpoints. Call it after the model is traced: objects added later are not
    # saved.
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
    """Makes a saver whose checkpoints `checkpoint.restore` can read, and vice versa."""
    return v1.train.Saver(
        var_list=tf_private.saveables_of_objects(checkpoint),
        sharded=True,
        max_to_keep=keep_max,
        keep_checkpoint_every_n_hours=keep_every_n_hours,
        save_relative_paths=True,
    )


def add_default_saver(*, keep_max: int | None, keep_every_n_hours: float | None) -> None:
    """Adds a saver to a graph whose model has none."""
    saver = v1.train.Saver(
        sharded=True,
        max_to_keep=keep_max,
        keep_checkpoint_every_n_hours=keep_every_n_hours,
        # Hooks may still make variables.
        defer_build=True,
        # Allows a model's folder to be moved.
        save_relative_paths=True,
    )
    v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


class ObjectScaffold(v1.train.Scaffold):
    """A `Scaffold(saver=tf.train.Checkpoint(...))` made by this package."""

    # Under `tf.distribute` a user's Scaffold is rejected, since the session of its ops makes no steps there. This one
    # is accepted: a saver only reads and writes variables, which the session has. Models that know their objects, such
    # as Keras models, are saved through it.

    def __init__(self, checkpoint: tf.train.Checkpoint) -> None:
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
    """Returns the hooks that save: the caller's and the model's, or else a new one."""
    save_secs, save_steps = settings.save_checkpoints_secs, settings.save_checkpoints_steps
    saving = [hook for hook in hooks if isinstance(hook, v1.train.CheckpointSaverHook)]
    if saving:
        # As in the original, the first of several saver hooks notifies the listeners.
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


# One switch of CheckpointSaverHook controls two files: graph.pbtxt, which it prints in Python when the session is made,
# and each checkpoint's .meta file. `FiniteSaverHook` writes the former itself, faster, and calls the hook's
# `after_create_session` with the switch off. A listener's `before_save` comes in between, where the switch is turned on
# again.
class _MetaGraphs(v1.train.CheckpointSaverListener):
    """Turns a hook's .meta files on again."""

    def __init__(self, hook: v1.train.CheckpointSaverHook) -> None:
        self._hook = hook

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        del session, global_step_value
        tf_private.set_writes_graph(self._hook, True)


class GrowingTimer:
    """A `SecondOrStepTimer` whose intervals double from the first length to the longest."""

    def __init__(self, first_secs: float, longest_secs: float) -> None:
        self._first_secs = first_secs
        self._longest_secs = longest_secs
        self.reset()

    def reset(self) -> None:
        # 60 s and 600 s make the intervals 60, 120, 240, 480, 600, 600, ...
        self._secs = self._first_secs
        self._step: int | None = None
        self._time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether a checkpoint is due; the first one always is."""
        if self._time is None:
            return True
        return step != self._step and time.time() >= self._time + self._secs

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records a checkpoint; returns the seconds and steps since the previous one."""
        now = time.time()
        elapsed: tuple[float | None, int | None] = (None, None)
        if self._time is not None and self._step is not None:
            elapsed = (now - self._time, step - self._step)
            # An early checkpoint, at the end of a training, does not lengthen the interval.
            if now >= self._time + self._secs:
                self._secs = min(2 * self._secs, self._longest_secs)
        self._time, self._step = now, step
        return elapsed

    def last_triggered_step(self) -> int | None:
        return self._step


class FiniteSaverHook(v1.train.CheckpointSaverHook):
    """A CheckpointSaverHook that skips a step whose loss is NaN."""

    # The saver runs before the hook that stops at a NaN; without this class, the last checkpoint could contain the NaN.
    #
    # The first checkpoint of a session and the last one are written while the training waits. A thread may write those
    # in between, from a copy, unless a listener needs them at once (see `AsyncSaves`).

    def __init__(
        self,
        checkpoint_dir: str,
        *,
        loss: tf.Tensor,
        scaffold: v1.train.Scaffold,
        in_thread: bool = False,
        **kwargs: Any,
    ) -> None:
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
        if self._in_thread:
            tf_private.join_checkpoint_listeners(self, self._writes.join)
        # A new writer immediately writes the default graph to the events; the model's graph is written when it is
        # final.
        with tf.Graph().as_default():
            v1.summary.FileWriterCache.get(self._folder)
        super().begin()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Saves the graph and a first checkpoint."""
        graph = v1.get_default_graph()
        with write_errors_explained(self._folder), converted_once(graph):
            if self._writes_graph:
                write_as_text(graph, os.path.join(self._folder, "graph.pbtxt"))
                tf_private.set_writes_graph(self, False)
            super().after_create_session(session, coord)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        fetches = super().before_run(run_context).fetches
        return v1.train.SessionRunArgs({"step": fetches, "loss": self._loss})

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Saves if a checkpoint is due, unless the loss is NaN."""
        is_nan = bool(np.isnan(run_values.results["loss"]))
        # A NaN's error names the last checkpoint.
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
        """Waits for a checkpoint being written when the training fails; see `AsyncSaves`."""
        self._writes.close()


Save = Callable[[v1.Session], str | None]
"""Saves the variables of a session."""

Writer = Callable[[v1.train.Saver, v1.Session, Save], str | None]
"""Calls the saving function with a session, now or later."""


# Graph with ops added by the engine -> its version after and before that.
_ADDED: weakref.WeakKeyDictionary[tf.Graph, tuple[int, int]] = weakref.WeakKeyDictionary()

_CONVERTED_ONCE: weakref.WeakSet[tf.Graph] = weakref.WeakSet()


@contextlib.contextmanager
def left_out_of_meta_graphs(graph: tf.Graph) -> Iterator[None]:
    """Excludes the ops that the block adds to a graph from later .meta files."""
    before = graph.version
    yield
    _ADDED[graph] = graph.version, before


def write_at_once(saver: v1.train.Saver, session: v1.Session, save: Save) -> str | None:
    """Saves a session's variables while its training waits; a `Writer`."""
    del saver
    return save(session)


class GraphOnceSaver:
    """The saver that a `CheckpointSaverHook` needs, with .meta files serialized once per state of the graph."""

    # The files are those that the saver writes, in the same order.

    def __init__(self, saver: v1.train.Saver, writer: Writer = write_at_once) -> None:
        self._saver = saver
        self._writer = writer
        # The graph, its version, and the message made from it.
        self._made: tuple[tf.Graph, int, bytes] | None = None

    @property
    def saver_def(self) -> Any:
        """The wrapped saver's definition."""
        return self._saver.saver_def

    def save(
        self,
        session: v1.Session,
        save_path: str,
        global_step: int | None = None,
        write_meta_graph: bool = True,
    ) -> str | None:
        """Saves the variables and, on request, the graph."""
        path = save_path if global_step is None else f"{save_path}-{global_step}"
        # Serialized here, since the graph may grow while the checkpoint is written.
        content = self._content(session.graph) if write_meta_graph else None

        def save(session: v1.Session) -> str | None:
            saved: str | None = self._saver.save(
                session, save_path, global_step=global_step, write_meta_graph=False
            )
            if content is not None:
                _write(f"{path}.meta", content)
            return saved

        return self._writer(self._saver, session, save)

    def _content(self, graph: tf.Graph) -> bytes:
        # A graph that grew from version 1200 to 1260 by a loop of steps counts as 1200 while it is at 1260: the message
        # made at 1200 is written again.
        since, before = _ADDED.get(graph, (None, 0))
        version = before if graph.version == since else graph.version
        if self._made is None or self._made[:2] != (graph, version):
            with graph.as_default():
                meta_graph = self._saver.export_meta_graph()
            self._made = graph, version, meta_graph.SerializeToString(deterministic=True)
        return self._made[2]


class GraphOnceScaffold:
    """The scaffold that a `CheckpointSaverHook` needs: its saver is a `GraphOnceSaver`."""

    # A saver of a user's own class is not wrapped: its `save` may do more.

    def __init__(self, scaffold: v1.train.Scaffold, writer: Writer = write_at_once) -> None:
        self._scaffold = scaffold
        self._writer = writer
        self._wrapped: GraphOnceSaver | None = None

    @property
    def saver(self) -> Any:
        """The saver; `None` if the scaffold has none."""
        saver = self._scaffold.saver
        if type(saver) is not v1.train.Saver:
            return saver
        if self._wrapped is None:
            self._wrapped = GraphOnceSaver(saver, self._writer)
        return self._wrapped


@contextlib.contextmanager
def converted_once(graph: tf.Graph) -> Iterator[None]:
    """Caches a graph's GraphDef for all callers in the block while the graph has the same ops."""
    # Callers get copies, which cost a tenth of a conversion and are independent of each other.
    if graph in _CONVERTED_ONCE:
        # An outer block caches already.
        yield
        return
    convert, known = graph.as_graph_def, dict[object, v1.GraphDef]()

    def as_graph_def(*args: Any, use_pybind11_proto: bool = False, **kwargs: Any) -> v1.GraphDef:
        # Both of TensorFlow's implementations give the same message; a saver uses the newer one.
        way = {"use_pybind11_proto": True} if use_pybind11_proto else {}
        key = graph.version, args, tuple(sorted(kwargs.items()))
        if key not in known:
            # A graph never shrinks.
            known.clear()
            known[key] = convert(*args, **way, **kwargs)
        copy = v1.GraphDef()
        copy.CopyFrom(known[key])
        return copy

    graph.as_graph_def = as_graph_def
    _CONVERTED_ONCE.add(graph)
    try:
        yield
    finally:
        _CONVERTED_ONCE.remove(graph)
        del graph.as_graph_def
        if not isinstance(convert, types.MethodType):
            # Restores a place's own method, as for one replica's graph.
            graph.as_graph_def = convert


def write_as_text(graph: tf.Graph, path: str) -> None:
    """Writes a graph like `tf.io.write_graph`, without printing it in Python."""
    # Printing takes a third of the time to a large model's first step.
    _write(path, str(graph.as_graph_def(add_shapes=True)).encode())


def _write(path: str, content: bytes) -> None:
    # A name that `write_errors_explained` recognizes.
    temporary = f"{path}.tmp{uuid.uuid4().hex}"
    with tf.io.gfile.GFile(temporary, "wb") as file:
        file.write(content)
    tf.io.gfile.rename(temporary, path, overwrite=True)
