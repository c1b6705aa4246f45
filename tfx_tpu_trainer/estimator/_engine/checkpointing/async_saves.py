"""Writes checkpoints in a thread while the training makes its next steps.

Between two steps, a session call fetches what the saver's `SaveV2` ops read. The ops themselves run in a graph and a
session of their own, on the CPU, fed with that copy. Whoever reads the folder waits for the thread.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.processes import available_memory
from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import write_errors_explained
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream

v1 = tf.compat.v1
_logger = tf.get_logger()

_under_way: dict[str, threading.Thread] = {}


class PendingWrite:
    """A write that a thread has begun."""

    def __init__(self, folder: str, write: Callable[[], object]) -> None:
        self._folder = folder
        self._write = write
        self._error: BaseException | None = None
        # Not a daemon, so a process that ends waits for it.
        self._thread = threading.Thread(target=self._run, name="checkpoint-write")
        _under_way[_key(folder)] = self._thread
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the thread has ended, with or without an error."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Waits for the end, and raises the error that the write ended with."""
        _wait(self._folder, self._thread)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error


def wait_for_writes(folder: str) -> None:
    """Waits until no thread of this process is writing a checkpoint to a folder; raises none of its errors."""
    thread = _under_way.get(_key(folder))
    if thread is not None and thread is not threading.current_thread():
        _wait(folder, thread)


def _wait(folder: str, thread: threading.Thread) -> None:
    if thread.is_alive():
        with said_while_waiting(
            f"the checkpoint that is being written to {folder}", change="This has no time limit."
        ):
            thread.join()
    if _under_way.get(_key(folder)) is thread:
        del _under_way[_key(folder)]


def _key(folder: str) -> str:
    return os.path.normpath(folder)


# The ops of a tf.compat.v1.train.Saver. If there are others, the program has changed the graph.
_OF_SAVERS = frozenset(
    (
        "Const",
        "Identity",
        "MergeV2Checkpoints",
        "Pack",
        "Placeholder",
        "PlaceholderWithDefault",
        "RegexFullMatch",
        "SaveV2",
        "Select",
        "SelectV2",
        "ShardedFilename",
        "StaticRegexFullMatch",
        "StringJoin",
    )
)
# A SaveV2 op has these inputs before the values: a prefix, names, and slices.
_NOT_WRITTEN = 3


# How copied values are written. A sharded saver has several SaveV2, which write parts under
# temporary names, and a MergeV2Checkpoints, which renames them; other savers have one SaveV2. These
# ops are imported into their own graph, with a placeholder for each value. Their control edges
# are dropped, as these may lead to any op of the model; `_WritingSession` runs the ops in order
# instead. A Saver makes only one call, of the tensor that has the checkpoint's path:
#   session.run(path_tensor)  ->  all SaveV2; `before_commit`; MergeV2Checkpoints; path_tensor
class CopiedState:
    """Copies the values that a saver writes, and writes the copy."""

    @classmethod
    def of(cls, saver: v1.train.Saver, graph: tf.Graph) -> CopiedState | None:
        """Makes the writing graph; `None` if a saver has ops that can't be taken out of the model."""
        if saver.saver_def is None:
            return None
        save = graph.get_tensor_by_name(saver.saver_def.save_tensor_name)
        saving = [op for op in upstream([save]) if op.type == "SaveV2"]
        written = [tensor for op in saving for tensor in list(op.inputs)[_NOT_WRITTEN:]]
        values = {each.name: each for each in written if each.op.type != "Const"}
        ops = list(upstream([save], given=values.keys()))
        known = {op.type for op in ops} <= _OF_SAVERS
        if not saving or not known or not all(map(_can_be_copied, values.values())):
            return None
        return cls(ops, list(values.values()), graph)

    def __init__(self, ops: list[tf.Operation], values: list[tf.Tensor], graph: tf.Graph) -> None:
        self._values = values
        # Bytes of the values.
        self.size = sum(each.shape.num_elements() * each.dtype.size for each in values)
        names = {tensor.name: f"copied_value_{at}" for at, tensor in enumerate(values)}
        graph_def = v1.GraphDef(versions=graph.graph_def_versions)
        for tensor in values:
            node = graph_def.node.add(name=names[tensor.name], op="Placeholder")
            node.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
        for op in ops:
            node = graph_def.node.add()
            node.CopyFrom(op.node_def)
            # The calls below set the order, and all ops run on the CPU.
            node.input[:] = [names.get(tensor.name, tensor.name) for tensor in op.inputs]
            node.device = ""
            node.attr.pop("_class", None)
        with tf.Graph().as_default() as writing:
            v1.import_graph_def(graph_def, name="")
        self._fed = [f"{names[tensor.name]}:0" for tensor in values]
        kinds = ("SaveV2", "MergeV2Checkpoints")
        steps = [[op for op in writing.get_operations() if op.type == kind] for kind in kinds]
        self._steps = [ops for ops in steps if ops]
        self._graph = writing

    def take(self, session: v1.Session) -> list[Any]:
        """Returns a copy of the current values in a session."""
        copied: list[Any] = session.run(self._values)
        return copied

    def write(
        self,
        values: list[Any],
        save: Callable[[v1.Session], str | None],
        *,
        before_commit: Callable[[], None],
    ) -> str | None:
        """Writes values that `take` has returned, and empties the list."""
        feeds = {name: _aligned(values.pop(0)) for name in self._fed}
        # Without the block, a Saver in this thread would find TensorFlow in eager mode.
        with _WritingSession(self._graph, self._steps, feeds, before_commit) as session:
            return save(session)


class _WritingSession(v1.Session):
    """A session that runs a saver's ops in order, for a graph without their control edges."""

    def __init__(
        self,
        graph: tf.Graph,
        steps: list[list[tf.Operation]],
        values: dict[str, Any],
        before_commit: Callable[[], None],
    ) -> None:
        config = v1.ConfigProto(device_count={"GPU": 0})
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        super().__init__(graph=graph, config=config)
        self._writing_steps = steps
        self._values_of_state = values
        self._before_commit = before_commit

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        # Run in this thread: the training needs the others.
        here = v1.RunOptions(inter_op_thread_pool=-1)
        for step in self._writing_steps:
            if step is self._writing_steps[-1]:
                self._before_commit()
            writes = step is self._writing_steps[0]
            super().run(step, {**feed_dict, **(self._values_of_state if writes else {})}, here)
            # The first step has written the values; free their memory.
            self._values_of_state = {}
        return super().run(fetches, feed_dict, here)


def _can_be_copied(tensor: tf.Tensor) -> bool:
    dtype = tensor.dtype.base_dtype
    numbers = dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool
    return numbers and tensor.shape.is_fully_defined() and tensor.graph.is_fetchable(tensor)


def _aligned(value: Any) -> Any:
    """Returns a value in memory that TensorFlow can read without another copy."""
    if not isinstance(value, np.ndarray) or value.nbytes < mmap.PAGESIZE:
        return value
    # In separate memory pages, which return to the system when it is freed.
    copy = np.frombuffer(mmap.mmap(-1, value.nbytes), value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy


WORTH_SECONDS = 0.1
"""Seconds below which writing a checkpoint costs less than copying the next one."""

_MEMORY_SHARE = 0.25


class PatientListener(v1.train.CheckpointSaverListener):
    """A listener that may be called some steps after a checkpoint."""

    def awaits(self, step: int) -> bool:
        """Returns whether the training must wait until a checkpoint is written.

        Args:
            step: The checkpoint's global step.

        Returns:
            Whether it must. Defaults to `False`.
        """
        del step
        return False

    def before_commit(self, step: int) -> None:
        """Called in the writing thread before a checkpoint gets its name.

        Args:
            step: The checkpoint's global step.

        Raises:
            Exception: If the checkpoint must not get its name; it ends the training.
        """


# How a thread saves. The problem: to write a gigabyte takes seconds, in which no step is made. The
# idea: copy the values between two session calls, in a fraction of that time, and leave the writing
# to a thread:
#   training   before_save(100), copy | steps 101, 102, ...          | after_save(100)
#   thread                            | SaveV2, before_commit, merge |
# The invariants: a checkpoint has the values of one moment; one is written at a time, so
# `before_save` of the next waits for it; listeners are called in the main thread, in order, and
# `after_save` once the checkpoint exists. Checkpoints that must exist when a call returns are
# written in that call: the first and the last (`allowed` is entered for the others alone), and any
# that a listener or hook may look for.
class AsyncSaves(v1.train.CheckpointSaverListener):
    """Writes the checkpoints of one training in a thread, and calls its listeners."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._joined = False
        self._listeners: Sequence[v1.train.CheckpointSaverListener] = ()
        self._step = 0
        self._awaited = False
        self._pending: tuple[int, PendingWrite] | None = None
        self._allowed = False
        self._copied: tuple[v1.train.Saver, tf.Graph, CopiedState | None] | None = None
        self._seconds = 0.0
        self._has_logged = False

    def join(
        self, listeners: Sequence[v1.train.CheckpointSaverListener]
    ) -> list[v1.train.CheckpointSaverListener]:
        """Returns the listeners that a hook is to call in place of its own."""
        # A listener with its own `after_save` expects to find the checkpoint, and the model of that step. If there is
        # one, the hook calls its listeners itself, and no thread writes.
        inherited = v1.train.CheckpointSaverListener.after_save
        for listener in listeners:
            own = getattr(listener.after_save, "__func__", None) is not inherited
            if own and not isinstance(listener, PatientListener):
                return list(listeners)
        self._joined, self._listeners = True, listeners
        return [self]

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Allows a save in the block to be written by a thread."""
        self._allowed = self._joined
        try:
            yield
        finally:
            self._allowed = False

    def begin(self) -> None:
        for listener in self._listeners:
            listener.begin()

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        """Waits for the previous checkpoint, then calls the listeners."""
        self.settle(session)
        self._step = int(global_step_value)
        for listener in self._listeners:
            listener.before_save(session, global_step_value)
        self._awaited = any(
            isinstance(listener, PatientListener) and listener.awaits(self._step)
            for listener in self._listeners
        )

    def after_save(self, session: v1.Session, global_step_value: int) -> bool:
        """Calls the listeners, unless a thread is still writing; returns whether one stops the training."""
        if self._pending is not None:
            return False
        return self._notify(session, global_step_value)

    def _notify(self, session: v1.Session, step: int) -> bool:
        stops = [listener.after_save(session, step) for listener in self._listeners]
        return any(stops)

    def end(self, session: v1.Session, global_step_value: int) -> None:
        for listener in self._listeners:
            listener.end(session, global_step_value)

    def settle(self, session: v1.Session, *, wait: bool = True) -> None:
        """Calls the listeners for a checkpoint that a thread has written."""
        if self._pending is None or not (wait or self._pending[1].is_done):
            return
        self._notify(session, self._finish(*self._pending))

    def close(self) -> None:
        """Waits for a checkpoint that is being written when the training fails, and logs its error."""
        if self._pending is None:
            return
        step, write = self._pending
        try:
            self._finish(step, write)
        except Exception as error:
            _logger.warning(
                "The checkpoint of step %d was not written: %s",
                step,
                getattr(error, "message", error),
            )

    def _finish(self, step: int, write: PendingWrite) -> int:
        try:
            write.finish()
        finally:
            # A second signal may end the wait.
            if write.is_done:
                self._pending = None
        return step

    def write(
        self, saver: v1.train.Saver, session: v1.Session, save: Callable[[v1.Session], str | None]
    ) -> str | None:
        """Writes a checkpoint, in a thread if that is allowed, fits into memory, and saves time."""
        is_worth_it = self._allowed and not self._awaited and self._seconds >= WORTH_SECONDS
        copied = self._copied_state(saver, session.graph) if is_worth_it else None
        if copied is None or not self._has_room(copied):
            with self._timed():
                return save(session)
        values, step = copied.take(session), self._step

        def write() -> None:
            with write_errors_explained(self._folder), self._timed():
                copied.write(values, save, before_commit=lambda: self._before_commit(step))

        self._pending = step, PendingWrite(self._folder, write)
        return None

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._seconds = time.monotonic() - started

    def _before_commit(self, step: int) -> None:
        for listener in self._listeners:
            if isinstance(listener, PatientListener):
                listener.before_commit(step)

    def _copied_state(self, saver: v1.train.Saver, graph: tf.Graph) -> CopiedState | None:
        if self._copied is None or self._copied[0] is not saver or self._copied[1] is not graph:
            self._copied = saver, graph, CopiedState.of(saver, graph)
        return self._copied[2]

    def _has_room(self, copied: CopiedState) -> bool:
        room = available_memory() * _MEMORY_SHARE
        if copied.size <= room:
            return True
        if not self._has_logged:
            self._has_logged = True
            _logger.info(
                "Training waits while checkpoints are written: a copy of the variables (%d MiB) would "
                "take more than a quarter of the free memory (%d MiB).",
                copied.size >> 20,
                int(room) >> 20,
            )
        return False
