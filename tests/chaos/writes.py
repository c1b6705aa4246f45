"""Reports a process's progress to its killer, and counts its writes, with a pause before one of them."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.lib.io import _pywrap_file_io

# Events that Python reports before an action, and which of their arguments are paths.
_PYTHONS_WRITES = {"os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1}

_TENSORFLOWS_WRITES = (
    "CopyFile",
    "CreateDir",
    "DeleteFile",
    "DeleteRecursively",
    "RecursivelyCreateDir",
    "RenameFile",
    "WritableFile",
)


class Writes:
    """Counts the writes of this process below a folder, and pauses before one of them.

    It sees those of Python and of `tf.io.gfile`, and the saving of checkpoints. Events are written by
    a thread of TensorFlow's, into files that no other process writes to.
    """

    def __init__(self, folder: Path, pause_at: int | None) -> None:
        self._folder = str(folder)
        self._pause_at = pause_at
        self._count = 0

    def watch(self) -> None:
        """Begins to count."""
        sys.addaudithook(self._audit)
        for name in _TENSORFLOWS_WRITES:
            setattr(_pywrap_file_io, name, self._counted(getattr(_pywrap_file_io, name), (0, 1)))
        saver = tf.compat.v1.train.Saver
        saver.save = self._counted(saver.save, (2,))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            self._note(event, arguments[:1])
        elif event in _PYTHONS_WRITES:
            self._note(event, arguments[: _PYTHONS_WRITES[event]])

    def _counted(self, function: Callable[..., Any], paths: tuple[int, ...]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._note(function.__name__, [args[i] for i in paths if i < len(args)])
            return function(*args, **kwargs)

        return counted

    def _note(self, name: str, paths: Any) -> None:
        texts = [os.fsdecode(p) for p in paths if isinstance(p, (str, bytes, os.PathLike))]
        if not any(text.startswith(self._folder) for text in texts):
            return
        self._count += 1
        report("write", f"{name}:{':'.join(texts).replace(' ', '_')}")
        if self._count == self._pause_at:
            report("paused", self._count)
            os.kill(os.getpid(), signal.SIGSTOP)


# TpuTrainer may load a module of the user's anew, so this is none.
_descriptor: int | None = None


def report_to(descriptor: int) -> None:
    """Lets this process report.

    Args:
        descriptor: The pipe's end to write to.
    """
    global _descriptor
    _descriptor = descriptor


def report(*words: object) -> None:
    """Reports a line of words, where somebody listens."""
    if _descriptor is not None:
        os.write(_descriptor, (" ".join(map(str, words)) + "\n").encode())
