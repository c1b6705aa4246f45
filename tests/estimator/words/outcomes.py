"""What a case leads to: the error's type and first words, and the log lines on the way."""

import logging
import re
import traceback
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

ERROR_WORDS = 7
LOG_WORDS = 4
# Errors of a session tell where their op was made.
_IN_TEXT = re.compile(r'File "([^"]+)", line (\d+)')
Outcome = dict[str, Any]
_SAME = (
    (re.compile(r"(?s).*assertion failed: "), "assertion failed: "),
    (re.compile(r"(?s)^Graph execution error:.*"), "Graph execution error"),
    (re.compile(r"(?s) \[\[\{\{node.*"), ""),
    (re.compile(r"\{\{function_node [^}]*\}\} "), ""),
    (re.compile(r"/[^\s'\"]*/(words_|tmp)[^\s'\",)]*"), "FOLDER"),
    (re.compile(r"<function .*? at 0x[0-9a-f]+>"), "<function>"),
    (re.compile(r"<[^<>]* at 0x[0-9a-f]+>"), "<object>"),
    (re.compile(r"(tensorflow_estimator|tfx_tpu_trainer|tests)\.[\w.]*\."), ""),
    (re.compile(r"\bd?type=\S+|numpy=\S+"), ""),
    (re.compile(r"(?<=/sec: )[\d.e+-]+"), "N"),
    (re.compile(r"\d+\.\d+(e-?\d+)?"), "N"),
)


class Heard(logging.Handler):
    """Keeps the records of TensorFlow's logger."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def first_words(message: str, count: int | None) -> str:
    """Returns the beginning of a message without what differs from run to run."""
    for pattern, same in _SAME:
        message = pattern.sub(same, message)
    words = [word.rstrip(".,;:") for word in re.sub(r"[\"']", "", message).split()]
    return " ".join(words[:count])


def outcome(case: Callable[[Any], Any], stack: Any) -> tuple[Outcome, Heard, BaseException | None]:
    """Returns what a case leads to, with the records and the error that it was read from."""
    heard, error = Heard(), None
    logger = tf.get_logger()
    before = logger.level, logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [heard]
    logger.setLevel(logging.INFO)
    try:
        case(stack)
    except Exception as raised:
        error = raised
    finally:
        level, logger.propagate, logger.handlers = before
        logger.setLevel(level)
    told = None if error is None else [_public_type(error), _message(error)]
    return {"error": told, "logs": [log_words(record) for record in heard.records]}, heard, error


def log_words(record: logging.LogRecord) -> str:
    """Returns a log line's level and first words."""
    return f"{record.levelname} {first_words(record.getMessage(), LOG_WORDS)}"


def _public_type(error: BaseException) -> str:
    """Returns the type that a program can name: the original's own ones are private."""
    kinds = type(error).__mro__
    return next(kind.__name__ for kind in kinds if "estimator" not in kind.__module__)


def _message(error: BaseException, count: int | None = ERROR_WORDS) -> str:
    text = " ".join(map(str, error.args)) if isinstance(error, KeyError) else str(error)
    return first_words(text, count)


def places(error: BaseException) -> list[tuple[str, int]]:
    """Returns the files and lines that an error came through, and where its op was made."""
    found: list[tuple[str, int]] = []
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        pending += [one.__cause__, one.__context__]
        found += _frames(one.__traceback__)
        made = getattr(getattr(one, "op", None), "traceback", ())
        found += [(frame[0], frame[1]) for frame in made]
        found += [(path, int(line)) for path, line in _IN_TEXT.findall(str(one))]
    return found


def _frames(trace: types.TracebackType | None) -> list[tuple[str, int]]:
    return [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(trace)]


def difference(
    recorded: Outcome,
    told: Outcome,
    error: BaseException | None,
    *,
    unsaid: tuple[str, ...] = (),
    ordered: bool = True,
) -> str:
    """Returns how an outcome differs from a recorded one, or "".

    Log lines that begin with words of `unsaid` are not looked for, and order counts if asked for.

    A subclass of the recorded error is equal to it, and words after the recorded ones are, and log
    lines between the recorded ones.
    """
    expected = recorded["error"]
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if expected is None or error is None:
        if told["error"] != expected:
            return f"error {expected} became {told['error']}"
    elif expected[0] not in kinds or not _message(error, None).startswith(expected[1]):
        return f"error {expected} became {told['error']}"
    lines = iter(told["logs"])
    expected_lines = [line for line in recorded["logs"] if not line.startswith(unsaid)]
    missing = [
        line
        for line in expected_lines
        if not any(line == other for other in (lines if ordered else told["logs"]))
    ]
    return f"log lines {missing} are missing in {told['logs']}" if missing else ""
