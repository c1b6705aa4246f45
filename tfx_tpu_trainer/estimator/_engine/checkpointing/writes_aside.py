"""Checkpoints that a thread writes while the training makes its next steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfx_tpu_trainer._support.processes import available_memory
from tfx_tpu_trainer.estimator._engine.checkpointing.copied_state import CopiedState
from tfx_tpu_trainer.estimator._engine.checkpointing.pending_writes import PendingWrite
from tfx_tpu_trainer.estimator._engine.checkpointing.write_errors import write_errors_explained

v1 = tf.compat.v1
_logger = tf.get_logger()

WORTH_SECONDS = 0.1
"""Seconds below which writing a checkpoint costs less than copying the next one."""

_MEMORY_SHARE = 0.25


class PatientListener(v1.train.CheckpointSaverListener):
    """A listener that need not hear of a checkpoint before the next step, and stops no training."""

    def before_commit(self, step: int) -> None:
        """Is called, in the thread that writes, before a checkpoint gets its name.

        Args:
            step: The checkpoint's global step.

        Raises:
            Exception: The checkpoint must not get its name; the training ends with it.
        """


class WritesAside(v1.train.CheckpointSaverListener):
    """Writes checkpoints of one training in a thread, one at a time, and tells its listeners of them.

    The values are copied between two session calls, so a checkpoint is of one moment, that of `before_save`.
    Listeners hear of it in the main thread: `before_save` before the copy, `after_save` when it is there.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._joined = False
        self._listeners: Sequence[v1.train.CheckpointSaverListener] = ()
        self._step = 0
        self._pending: tuple[int, PendingWrite] | None = None
        self._allowed = False
        self._copied: tuple[v1.train.Saver, tf.Graph, CopiedState | None] | None = None
        self._seconds = 0.0
        self._said = False

    def join(
        self, listeners: Sequence[v1.train.CheckpointSaverListener]
    ) -> list[v1.train.CheckpointSaverListener]:
        """Returns what a hook is to tell instead of its listeners.

        One that has an `after_save` of its own is to find the checkpoint, and the model of that step, when it
        is called: with such a one the hook tells its listeners itself, and no checkpoint is written aside.
        """
        told_at_once = v1.train.CheckpointSaverListener.after_save
        for listener in listeners:
            own = getattr(listener.after_save, "__func__", None) is not told_at_once
            if own and not isinstance(listener, PatientListener):
                return list(listeners)
        self._joined, self._listeners = True, listeners
        return [self]

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Lets a save of the block be written aside, where listeners, saver and memory let it."""
        self._allowed = self._joined
        try:
            yield
        finally:
            self._allowed = False

    def begin(self) -> None:
        """Tells the listeners."""
        for listener in self._listeners:
            listener.begin()

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        """Waits for the checkpoint before, and tells the listeners of this one."""
        self.settle(session)
        self._step = int(global_step_value)
        for listener in self._listeners:
            listener.before_save(session, global_step_value)

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        """Tells the listeners, unless it is being written."""
        if self._pending is None:
            for listener in self._listeners:
                listener.after_save(session, global_step_value)

    def end(self, session: v1.Session, global_step_value: int) -> None:
        """Tells the listeners."""
        for listener in self._listeners:
            listener.end(session, global_step_value)

    def settle(self, session: v1.Session, *, wait: bool = True) -> None:
        """Tells the listeners of a checkpoint that has been written aside."""
        if self._pending is None or not (wait or self._pending[1].is_done):
            return
        step = self._finish(*self._pending)
        for listener in self._listeners:
            listener.after_save(session, step)

    def close(self) -> None:
        """Waits for a checkpoint that is being written when the training fails, and says what comes of it."""
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
        self,
        saver: v1.train.Saver,
        session: v1.Session,
        save: Callable[[v1.Session], str | None],
    ) -> str | None:
        """Writes a checkpoint: aside, or as it is where that is not allowed or not worth it."""
        is_worth_it = self._allowed and self._seconds >= WORTH_SECONDS
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
        if not self._said:
            self._said = True
            _logger.info(
                "Training waits while checkpoints are written: a copy of the variables (%d MiB) would "
                "take more than a quarter of the free memory (%d MiB).",
                copied.size >> 20,
                int(room) >> 20,
            )
        return False
