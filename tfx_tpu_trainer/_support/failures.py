"""An exception of a user's module: one line that names the function, the file and the line of code."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
import types
from collections.abc import Iterator, Sequence

_REPORT = ("Graph execution error", "Detected at", "Node:", " ", "\t")
_NODE = re.compile(r"'?\{\{node (\S+)\}\} = \w+\[[^\]]*\]\([^)]*\)'?")


class ModuleFailedError(ValueError):
    """A function of a user's module raised an exception, which is the cause of this one."""


def first_reason(message: str) -> str:
    """Takes the reason out of TensorFlow's report of a node and of where it was defined."""
    lines = [line for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(_REPORT)]
    return (reasons or lines or ["no reason given"])[0].strip().removeprefix("Name: <unknown>, ")


@contextlib.contextmanager
def failures_are_named(module: types.ModuleType) -> Iterator[None]:
    """Says of an exception that comes out of a user's module which of its lines it comes from.

    An OSError passes as it is: it tells of the machine, which may do better in another attempt.
    """
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        folder = os.path.dirname(os.path.abspath(module.__file__ or ""))
        own = [frame for frame in frames if frame.filename == module.__file__]
        if isinstance(error, (ModuleFailedError, OSError)) or not own:
            raise
        last = _last_of(frames, folder)
        raise ModuleFailedError(
            f"{own[0].name} of module {module.__name__!r} fails at {last.filename}:{last.lineno}: "
            f"{type(error).__name__}{_reason(str(error))}"
        ) from error


def _last_of(frames: Sequence[traceback.FrameSummary], folder: str) -> traceback.FrameSummary:
    """Returns the innermost frame of the module or of a helper next to it."""
    return next(frame for frame in reversed(frames) if os.path.dirname(frame.filename) == folder)


def _reason(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    # AutoGraph puts the frames of the function before what it raised.
    reason = lines[-1] if lines[0] == "in user code:" else first_reason(message)
    return ": " + _NODE.sub(r"'\1'", reason)
