"""The files that hold a graph: graph.pbtxt, the .meta file beside each checkpoint, and the events.

A Saver turns the whole graph into a message for each checkpoint, which takes most of the pause that a checkpoint of a
small model with many ops is. Here the message is made once and written again as long as the graph stays the same: it is
final, except for the loop of steps that is added to it early on, which is no part of the model.

TensorFlow's writers also turn it into a GraphDef once for each place that they write it to, four times before a
training's first step; `converted_once` lets them share one.
"""

from __future__ import annotations

import contextlib
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

Save = Callable[[v1.Session], str | None]
"""Saves the variables of a session."""

Writer = Callable[[v1.train.Saver, v1.Session, Save], str | None]
"""Calls the saving function with a session, now or later."""


# A graph that the engine has added ops to -> its version since, and the one before.
_ADDED: weakref.WeakKeyDictionary[tf.Graph, tuple[int, int]] = weakref.WeakKeyDictionary()

_CONVERTED_ONCE: weakref.WeakSet[tf.Graph] = weakref.WeakSet()


@contextlib.contextmanager
def left_out_of_meta_graphs(graph: tf.Graph) -> Iterator[None]:
    """Keeps what is added to a graph inside out of the .meta files that are written later."""
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
