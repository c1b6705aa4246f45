"""A checkpoint that a thread is writing: who reads its folder waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tfx_tpu_trainer._support.waiting import said_while_waiting

_under_way: dict[str, threading.Thread] = {}


class PendingWrite:
    """A write that a thread has begun."""

    def __init__(self, folder: str, write: Callable[[], object]) -> None:
        """Begins."""
        self._folder = folder
        self._write = write
        self._error: BaseException | None = None
        # Not a daemon: a process that ends waits for it.
        self._thread = threading.Thread(target=self._run, name="checkpoint-write")
        _under_way[_key(folder)] = self._thread
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has come to its end, good or bad."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Waits for its end."""
        _wait(self._folder, self._thread)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error


def wait_for_writes(folder: str) -> None:
    """Waits until no thread of this process writes a checkpoint into a folder, whatever comes of it."""
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
