"""Writes a run's two logs: `log.txt` for people, and `debug.txt` with everything.

The log has a line for each message, with its time, level and component: messages of our code and the user's, of TFX's
components and TensorFlow's sessions, and all errors. The debug log has each message in full, with its logger and source
line, including the dumps of TFX's launcher, warnings of other packages, and the output of C++ and other processes.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from tfx_tpu_trainer._support.messages import is_of_this_package, printable

LOG = "log.txt"
DEBUG_LOG = "debug.txt"
# The declared pipeline, and the run as a Mermaid diagram.
GRAPH_FILE, DIAGRAM_FILE = "graph.json", "graph.mmd"

# A longer line is a dump, or meant for a program.
LINE_LIMIT = 300

BEFORE_COMPONENTS = "runner"

_TIME = "%Y-%m-%d %H:%M:%S"
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("/site-packages/", "/dist-packages/")

# Other packages whose messages are for users; of all others only errors are logged.
_TOLD = ("tfx/components/", "tfx/extensions/", "tensorflow/python/training/")
# Repeated messages of those packages that do not help a user.
_IDLE = ("Saver not created because", "udf_utils.get_fn", "Excluding no splits")
# TFX's local runner, whose other messages are internal.
_RUNNING, _FINISHED = "Component %s is running.", "Component %s is finished."


def start(folder: Path) -> RunLog:
    """Sends this process's logging, warnings and output to a run's logs.

    Call it before TensorFlow, TFX and Beam are imported: each of them adds a handler if it finds none.
    """
    log = RunLog(folder / LOG)
    root = logging.getLogger()
    everything = logging.StreamHandler(sys.stderr)
    everything.setFormatter(
        logging.Formatter(
            "%(asctime)s %(levelname)s %(name)s %(pathname)s:%(lineno)d: %(message)s", _TIME
        )
    )
    for handler in (everything, log):
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    warnings.showwarning = _log_warning
    sys.stdout = _Printed()
    return log


class RunLog(logging.Handler):
    """Writes a run's log."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._component = BEFORE_COMPONENTS
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a message, or leaves it to the debug log."""
        try:
            self._follow(record)
        # As in any handler, a logging failure ends no run.
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Closes the file."""
        self.acquire()
        try:
            self._file.close()
        finally:
            self.release()
        super().close()

    def _follow(self, record: logging.LogRecord) -> None:
        if self._file.closed:
            return
        package = package_of(record.pathname)
        at_launcher = package is not None and package.startswith("tfx/orchestration/")
        if at_launcher and record.msg == _RUNNING:
            self._component = str(cast(tuple[object, ...], record.args)[0])
            self._write(record, ["running"])
            return
        if at_launcher and record.msg == _FINISHED:
            self._write(record, [f"finished{self._left_out_since()}"])
            self._component = BEFORE_COMPONENTS
            return
        lines = _lines_of(record)
        if package is None:
            self._write(record, lines if record.levelno > logging.INFO else _shortened(lines))
        elif record.levelno >= logging.ERROR:
            self._write(record, _shortened(lines))
        elif record.levelno >= logging.WARNING:
            self._left_out += 1
        elif package.startswith(_TOLD) and len(lines) == 1 and not lines[0].startswith(_IDLE):
            self._write(record, _shortened(lines))

    def _left_out_since(self) -> str:
        """Returns how many warnings only the debug log has, since the last call."""
        number, self._left_out = self._left_out, 0
        if not number:
            return ""
        said = f"{number} warnings" if number > 1 else "a warning"
        return f"; {said} of other packages in {DEBUG_LOG}"

    def _write(self, record: logging.LogRecord, lines: list[str]) -> None:
        time = logging.Formatter().formatTime(record, _TIME)
        first, *rest = map(printable, lines)
        # Under other runners a component names itself.
        first = first.removeprefix(f"{self._component}: ")
        self._file.write(f"{time} {record.levelname:<7} {self._component}: {first}\n")
        self._file.writelines(f"    {line}\n" for line in rest)


def package_of(path: str) -> str | None:
    """Returns a source file's path below the folder where its package is installed."""
    if is_of_this_package(path):
        return None
    for folder in _INSTALLED:
        _, installed, below = path.rpartition(folder)
        if installed:
            return below
    if path.startswith(_STANDARD_LIBRARY):
        return f"python/{path.removeprefix(_STANDARD_LIBRARY)}"
    return None


def _lines_of(record: logging.LogRecord) -> list[str]:
    """Returns the non-empty lines of a message and its traceback."""
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)
    return [line.rstrip() for line in text.splitlines() if line.strip()] or [""]


def _shortened(lines: list[str]) -> list[str]:
    """Shortens a message to one line, with the number of lines left to the debug log."""
    first, *rest = lines
    more = [f"{len(rest):,} more line{'s' if len(rest) > 1 else ''}"] if rest else []
    if len(first) > LINE_LIMIT:
        more.insert(0, f"{len(first) - LINE_LIMIT:,} more characters")
        first = first[:LINE_LIMIT]
    return [f"{first} ... ({' and '.join(more)} in {DEBUG_LOG})" if more else first]


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Logs a Python warning under the line that caused it."""
    del line
    if file is not None:
        file.write(warnings.formatwarning(message, category, filename, lineno))
        return
    logger = logging.getLogger("py.warnings")
    text = "%s:%d: %s: %s"
    args = (filename, lineno, category.__name__, message)
    logger.handle(
        logger.makeRecord(logger.name, logging.WARNING, filename, lineno, text, args, None)
    )


class _Printed(io.TextIOBase):
    """Python's standard output, logged under the name of the module that prints."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._logger = logging.getLogger("print")
        self._lock = threading.RLock()
        self._begun = ""

    @property
    def buffer(self) -> BinaryIO:
        return cast(TextIO, sys.__stdout__).buffer

    def fileno(self) -> int:
        return cast(TextIO, sys.__stdout__).fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for line in self._whole_lines(text):
            # 2: the source line that prints.
            self._logger.info("%s", line, stacklevel=2)
        return len(text)

    def _whole_lines(self, text: str) -> Iterator[str]:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
        return filter(str.strip, lines)
