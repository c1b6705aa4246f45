"""Two attempts at once: the older one is paused at one of its writes, while a newer one does all of the work."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.lib.io import _pywrap_file_io

from tests.chaos import killing
from tests.chaos.attempt import NODE, Plan, in_process, train
from tests.chaos.checks import Ending
from tests.chaos.reports import report
from tfx_tpu_trainer.component.resume import RECORD_FILE

# What Python tells before it is done, and which of its arguments are paths.
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

_PATIENCE_SECONDS = 120


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
            os.kill(os.getpid(), signal.SIGSTOP)


def training(plan: Plan, folder: Path, *, pause_at: int | None = None) -> None:
    """Trains, counting writes.

    Args:
        plan: What is trained.
        folder: Where everything goes, at the places that `run.Execution` gives it.
        pause_at: Number of the write, from 1, before which the process pauses. Defaults to `None`:
            it does not.
    """
    Writes(folder, pause_at).watch()
    train(plan, folder / "outputs", folder / "checkpoints")


def older_and_newer(plan: Plan, folder: Path, pause_at: int, expected: Ending) -> list[str]:
    """Lets a newer attempt do all of the work while the older one is paused, then lets that go on.

    Args:
        plan: What is trained.
        folder: Where everything of both goes.
        pause_at: Number of the older one's write before which it is paused.
        expected: What the newer one leaves alone, without a push.

    Returns:
        A line for each thing that is not as it should be.
    """
    folder.mkdir()
    logs = [folder / "older.txt", folder / "newer.txt"]
    older = in_process(functools.partial(training, plan, folder, pause_at=pause_at), logs[0])
    _, status = os.waitpid(older, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        return [f"the older one has ended before its write {pause_at}: {logs[0]}"]
    had_the_folder = any((folder / "checkpoints" / NODE).glob(f"*/{RECORD_FILE}"))
    try:
        newer = killing.run(functools.partial(training, plan, folder), logs[1], seconds={})
        if newer.code:
            return [f"the newer one ends with {newer.code}: {logs[1]}"]
        problems = [f"newer: {line}" for line in _ending(folder).differences(expected)]
    finally:
        os.kill(older, signal.SIGCONT)
        code = _wait(older)
    problems += [
        f"after the older one went on: {line}" for line in _ending(folder).differences(expected)
    ]
    if had_the_folder:
        said = [line for line in logs[0].read_text().splitlines() if "Error: " in line][-1:]
        if not code or not any("Another attempt at this training has taken" in s for s in said):
            problems.append(f"the older one ended with {code}, saying {said}: {logs[0]}")
    return problems


def _ending(folder: Path) -> Ending:
    return Ending.read(folder / "outputs", folder / "checkpoints", None)


def _wait(process: int) -> int:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return 0
