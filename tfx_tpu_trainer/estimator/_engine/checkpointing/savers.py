"""Chooses what saves a session, the saver and the hooks that call it, and writes the files that hold its graph.

These are graph.pbtxt, the .meta file beside each checkpoint, and the events. A Saver turns the whole graph into a
message for each checkpoint, which takes most of the pause that a checkpoint of a small model with many ops is. Here
the message is made once and written again as long as the graph stays the same: it is final, except for the loop of
steps that is added to it early on, which is no part of the model. TensorFlow's writers also turn it into a GraphDef
once for each place that they write it to, four times before a training's first step; `converted_once` lets them share
one.
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
    """Returns the hooks that save: those of the caller and the model, or else a new one."""
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


# One switch of CheckpointSaverHook is for two files: for graph.pbtxt, which it prints in Python
# when the session is made, and for the .meta file of each checkpoint. `FiniteSaverHook` writes the
# former itself, faster, and so calls the hook's `after_create_session` with the switch off. A
# listener's `before_save` comes between the two: there it is switched on again.
class _MetaGraphs(v1.train.CheckpointSaverListener):
    """Lets a hook write the .meta files that it has been kept from writing with the graph's text."""

    def __init__(self, hook: v1.train.CheckpointSaverHook) -> None:
        self._hook = hook

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        del session, global_step_value
        tf_private.set_writes_graph(self._hook, True)


class GrowingTimer:
    """A `SecondOrStepTimer` whose intervals double from the first length up to the longest."""

    def __init__(self, first_secs: float, longest_secs: float) -> None:
        self._first_secs = first_secs
        self._longest_secs = longest_secs
        self.reset()

    def reset(self) -> None:
        """Begins again."""
        # 60 s and 600 s make the intervals 60, 120, 240, 480, 600, 600, ...
        self._secs = self._first_secs
        self._step: int | None = None
        self._time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Tells whether a checkpoint is due; the first one always is."""
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
        # What makes the writer has the default graph written to the events at once; the model's is,
        # when it is final.
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


Save = Callable[[v1.Session], str | None]
"""Saves the variables of a session."""

Writer = Callable[[v1.train.Saver, v1.Session, Save], str | None]
"""Calls the saving function with a session, now or later."""


# A graph that the engine has added ops to -> its version since, and the one before.
_ADDED: weakref.WeakKeyDictionary[tf.Graph, tuple[int, int]] = weakref.WeakKeyDictionary()

_CONVERTED_ONCE: weakref.WeakSet[tf.Graph] = weakref.WeakSet()


@contextlib.contextmanager
def left_out_of_meta_graphs(graph: tf.Graph) -> Iterator[None]:
    """Keeps what the block adds to a graph out of the .meta files that are written later."""
    before = graph.version
    yield
    _ADDED[graph] = graph.version, before


def write_at_once(saver: v1.train.Saver, session: v1.Session, save: Save) -> str | None:
    """Saves the variables of a session while its training waits; a `Writer`."""
    del saver
    return save(session)


class GraphOnceSaver:
    """What a `CheckpointSaverHook` asks of a saver, with .meta files that are made once for each state of the graph.

    The files are those that the saver writes, in the same order.
    """

    def __init__(self, saver: v1.train.Saver, writer: Writer = write_at_once) -> None:
        """Wraps a saver."""
        self._saver = saver
        self._writer = writer
        # Of the graph that it was made of, and of its version then.
        self._made: tuple[tf.Graph, int, bytes] | None = None

    @property
    def saver_def(self) -> Any:
        """The saver's own."""
        return self._saver.saver_def

    def save(
        self,
        session: v1.Session,
        save_path: str,
        global_step: int | None = None,
        write_meta_graph: bool = True,
    ) -> str | None:
        """Saves the variables, and the graph where that is requested."""
        path = save_path if global_step is None else f"{save_path}-{global_step}"
        # Here, as the graph may grow while the checkpoint is being written.
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
        # A graph that grew from version 1200 to 1260 by a loop of steps counts as 1200 as long as
        # it is at 1260: the message that was made of it at 1200 is written again.
        since, before = _ADDED.get(graph, (None, 0))
        version = before if graph.version == since else graph.version
        if self._made is None or self._made[:2] != (graph, version):
            with graph.as_default():
                meta_graph = self._saver.export_meta_graph()
            self._made = graph, version, meta_graph.SerializeToString(deterministic=True)
        return self._made[2]


class GraphOnceScaffold:
    """What a `CheckpointSaverHook` asks of a scaffold: its saver, as a `GraphOnceSaver`.

    A saver of a class of the user's own is passed on as it is: its `save` may do more.
    """

    def __init__(self, scaffold: v1.train.Scaffold, writer: Writer = write_at_once) -> None:
        """Wraps a scaffold."""
        self._scaffold = scaffold
        self._writer = writer
        self._wrapped: GraphOnceSaver | None = None

    @property
    def saver(self) -> Any:
        """The saver; `None` where the scaffold has none."""
        saver = self._scaffold.saver
        if type(saver) is not v1.train.Saver:
            return saver
        if self._wrapped is None:
            self._wrapped = GraphOnceSaver(saver, self._writer)
        return self._wrapped


@contextlib.contextmanager
def converted_once(graph: tf.Graph) -> Iterator[None]:
    """Lets a graph be turned into a GraphDef once, as long as it has the same ops, for all who ask inside.

    What they get are copies, which cost a tenth: nobody sees what another does to his.
    """
    if graph in _CONVERTED_ONCE:
        # A block around this one does it.
        yield
        return
    convert, known = graph.as_graph_def, dict[object, v1.GraphDef]()

    def as_graph_def(*args: Any, use_pybind11_proto: bool = False, **kwargs: Any) -> v1.GraphDef:
        # Which of TensorFlow's ways it goes makes no other message; a saver asks for the newer one.
        way = {"use_pybind11_proto": True} if use_pybind11_proto else {}
        key = graph.version, args, tuple(sorted(kwargs.items()))
        if key not in known:
            # A graph that has grown does not shrink again.
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
            # A place has its own, such as the graph of one replica alone.
            graph.as_graph_def = convert


def write_as_text(graph: tf.Graph, path: str) -> None:
    """Writes a graph as `tf.io.write_graph` does.

    But that prints in Python, which takes a third of the time to a large model's first step.
    """
    _write(path, str(graph.as_graph_def(add_shapes=True)).encode())


def _write(path: str, content: bytes) -> None:
    # A name that `write_errors_explained` knows.
    temporary = f"{path}.tmp{uuid.uuid4().hex}"
    with tf.io.gfile.GFile(temporary, "wb") as file:
        file.write(content)
    tf.io.gfile.rename(temporary, path, overwrite=True)
