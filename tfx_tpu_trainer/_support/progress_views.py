"""Writes progress as text: rate-limited log lines, and a small file for a runner."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable

from tfx_tpu_trainer._support.progress import Batches, Steps

LINE_SECONDS = 5.0
"""The minimum time between two lines of a kind, in seconds."""

_LONGEST_SECONDS = 60.0

STATUS_VARIABLE = "TFX_TPU_TRAINER_PROGRESS_FILE"
"""Environment variable: path of the file to write; without it, no file is written."""

# TensorFlow's logger, which has all messages about a training; obtained without importing TensorFlow.
_logger = logging.getLogger("tensorflow")


class LinePace:
    """Limits lines to one per `LINE_SECONDS`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a line may be logged now."""
        return self._last is None or self._clock() - self._last >= LINE_SECONDS

    def logged(self) -> None:
        """Records that a line was logged."""
        self._last = self._clock()


class LogView:
    """A `View` that writes lines to the log, at level INFO, or elsewhere."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.every_secs = LINE_SECONDS
        self._write = write or _log
        self._clock = clock
        self._last: tuple[int, float] | None = None

    def began(self, phase: str, *, is_told: bool) -> None:
        """Logs the phase, unless another message does."""
        self._last = None
        if is_told:
            self._write(f"Phase: {phase}")

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Writes a line; skips a phase's first update."""
        if isinstance(work, Steps):
            count, every = work.reached, work.report_every or 1
        else:
            count, every = work.done, 1
        now = self._clock()
        if self._last is not None:
            before, then = self._last
            if count - before < every and now - then < _LONGEST_SECONDS:
                return
            self._write(f"{phase}: {work}")
        self._last = count, now

    def said(self, line: str) -> None:
        """Logs a message."""
        self._write(line)

    def close(self) -> None:
        """Does nothing."""


def _log(line: str) -> None:
    _logger.info("%s", line)


class StatusFile:
    """A `View` that keeps one line of text in a file while the run lasts."""

    every_secs = 2.0

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_writable = True

    def began(self, phase: str, *, is_told: bool) -> None:
        """Writes the phase."""
        del is_told
        self._write(phase)

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Writes the phase's progress."""
        self._write(f"{phase}: {work}")

    def said(self, line: str) -> None:
        """Does nothing; messages go to the log."""

    def close(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            os.remove(self._path)

    def _write(self, text: str) -> None:
        if not self._is_writable:
            return
        temporary = f"{self._path}.tmp-{os.getpid()}"
        try:
            # Complete, but not synced: a training does not wait for the disk.
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"progress": text}, file)
            os.replace(temporary, self._path)
        except OSError:
            # A full disk does not end a training for a status line.
            self._is_writable = False


def read_status(path: str | os.PathLike[str]) -> str | None:
    """Reads another process's progress."""
    try:
        with open(path, encoding="utf-8") as file:
            status = json.load(file)
    except (OSError, ValueError):
        return None
    text = status.get("progress") if isinstance(status, dict) else None
    return text if isinstance(text, str) else None
