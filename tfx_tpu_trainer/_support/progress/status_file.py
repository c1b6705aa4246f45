"""Progress as a small file, for whoever watches the process from outside."""

from __future__ import annotations

import contextlib
import json
import os

from tfx_tpu_trainer._support.progress.work import Batches, Steps

STATUS_VARIABLE = "TFX_TPU_TRAINER_PROGRESS_FILE"
"""Environment variable: path of the file to write; without it, no file is written."""


class StatusFile:
    """A `View` that keeps a file of one line of text, which is there as long as the run is."""

    every_secs = 2.0

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_writable = True

    def began(self, phase: str, *, is_told: bool) -> None:
        """Writes the phase."""
        del is_told
        self._write(phase)

    def shown(self, phase: str, work: Steps | Batches) -> None:
        """Writes how far it is."""
        self._write(f"{phase}: {work}")

    def said(self, line: str) -> None:
        """Leaves it to the log."""

    def close(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            os.remove(self._path)

    def _write(self, text: str) -> None:
        if not self._is_writable:
            return
        temporary = f"{self._path}.tmp-{os.getpid()}"
        try:
            # Whole, but not put on the disk at once: no training waits for that.
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"progress": text}, file)
            os.replace(temporary, self._path)
        except OSError:
            # A disk that is full ends no training for the sake of a line.
            self._is_writable = False


def read_status(path: str | os.PathLike[str]) -> str | None:
    """Reads what a process has written of its progress."""
    try:
        with open(path, encoding="utf-8") as file:
            status = json.load(file)
    except (OSError, ValueError):
        return None
    text = status.get("progress") if isinstance(status, dict) else None
    return text if isinstance(text, str) else None
