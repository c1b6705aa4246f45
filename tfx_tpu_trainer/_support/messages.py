"""Makes text from elsewhere printable, names the user's line of an error, and silences warnings of libraries."""

import contextlib
import logging
import os
import re
import traceback
import types
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

# Control characters, direction marks and other invisible ones, surrogates, line breaks.
_UNSEEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
_KEPT: Final = "\n\t"

# Lines of TensorFlow's report of a failed node without a reason, and its naming of the node.
_REPORT = ("Graph execution error", "Detected at", "Node:", " ", "\t")
_NODE = re.compile(r"'?\{\{node (\S+)\}\} = \w+\[[^\]]*\]\([^)]*\)'?")

PACKAGE_FOLDER: Final = Path(os.path.abspath(__file__)).parents[1]
"""The folder `tfx_tpu_trainer`, whose parent is on the path of child processes."""

_PREFIX: Final = f"{PACKAGE_FOLDER}{os.sep}"


def printable(text: str) -> str:
    """Escapes invisible characters, except tabs and line ends.

    A file's name or a message may hold escape sequences, which recolour, overwrite or retitle a terminal, and marks
    that reverse the reading direction. They become Python's hexadecimal escapes.
    """
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape").decode("ascii")


def is_of_this_package(path: str) -> bool:
    """Returns whether a file, such as a stack frame's, belongs to this package."""
    return path.startswith(_PREFIX)


@contextlib.contextmanager
def errors_only(*loggers: str) -> Iterator[None]:
    """Silences the warnings of loggers while the block runs; "" is the root logger."""
    found = [logging.getLogger(name) for name in loggers]
    levels = [logger.level for logger in found]
    for logger in found:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(found, levels, strict=True):
            logger.setLevel(level)


class ModuleFailedError(ValueError):
    """A function of a user's module raised an exception, which is the cause of this one."""


def first_reason(message: str) -> str:
    """Extracts the reason from TensorFlow's report of a failed node."""
    lines = [line for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(_REPORT)]
    return (reasons or lines or ["no reason given"])[0].strip().removeprefix("Name: <unknown>, ")


def in_one_line(error: BaseException) -> str:
    """Names an error's type and its message, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def reason_in_words(error: BaseException) -> str:
    """Names an error's type and its reason, without the rest of TensorFlow's report."""
    return f"{type(error).__name__}: {first_reason(str(error))}"


@contextlib.contextmanager
def failures_are_named(module: types.ModuleType) -> Iterator[None]:
    """Names the line of a user's module that raised an exception.

    An OSError passes unchanged: it is about the machine, and another attempt may succeed.
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
    """Returns the innermost frame in the module or a helper next to it."""
    return next(frame for frame in reversed(frames) if os.path.dirname(frame.filename) == folder)


def _reason(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ""
    # AutoGraph prepends the function's frames to the message.
    reason = lines[-1] if lines[0] == "in user code:" else first_reason(message)
    return ": " + _NODE.sub(r"'\1'", reason)
