"""Progress as log lines: one every so many steps, and at most every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tfx_tpu_trainer._support.progress.work import Batches, Steps

LINE_SECONDS = 5.0
"""Least time between two lines of a kind, in seconds."""

_LONGEST_SECONDS = 60.0

# TensorFlow's, as that of all else that is said of a training; nothing here imports TensorFlow for it.
_logger = logging.getLogger("tensorflow")


class LinePace:
    """Lets a line through, and then none for `LINE_SECONDS`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins."""
        self._clock = clock
        self._last: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a line may be logged now."""
        return self._last is None or self._clock() - self._last >= LINE_SECONDS

    def logged(self) -> None:
        """Is told that one was."""
        self._last = self._clock()


class LogView:
    """A `View` that writes lines: into the log, level INFO, or elsewhere."""

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins."""
        self.every_secs = LINE_SECONDS
        self._write = write or _log
        self._clock = clock
        self._last: tuple[int, float] | None = None

    def began(self, phase: str, *, is_told: bool) -> None:
        """Says it, where nothing else does."""
        self._last = None
        if is_told:
            self._write(f"Phase: {phase}")

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Writes a line; the first look at a phase is too early for one."""
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
        """Writes it."""
        self._write(line)

    def close(self) -> None:
        """Has nothing to do."""


def _log(line: str) -> None:
    _logger.info("%s", line)
