"""Which line of the user's code made an op."""

from __future__ import annotations

import functools
import linecache
import os
import re
from typing import Any

import tensorflow as tf

# Frames of these are of libraries or ours: the user's line is the last one that is not.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARIES = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("tensorflow", "tensorboard", "keras", "tf_keras")
)

_OF_A_GRADIENT = re.compile(r"gradients(?:_\d+)?/(.+?)_grad(?:_\d+)?(?:/|$)")


def source_line(op: tf.Operation) -> str | None:
    """Finds the line of the user's code that made an op.

    Args:
        op: An op of a graph under construction or complete. Of one that a gradient's computation
            made, the line of the op that it is the gradient of.

    Returns:
        `"FILE:NUMBER: CODE"`, without the code where the file can't be read; `None` where no
        user's line is known.
    """
    forward = _forward_op(op)
    frames = [frame for frame in (forward or op).traceback or () if _is_users(frame)]
    if not frames:
        return None
    filename, number = frames[-1].filename, frames[-1].lineno
    code = linecache.getline(filename, number).strip()
    return f"{filename}:{number}: {code}" if code else f"{filename}:{number}"


def _forward_op(op: tf.Operation) -> tf.Operation | None:
    """Returns the op that an op is the gradient of, by the name that TensorFlow gives gradients."""
    found = _OF_A_GRADIENT.search(op.name)
    if not found:
        return None
    # Names of gradients are below the name scope that minimize() was called in.
    for name in (op.name[: found.start()] + found[1], found[1]):
        try:
            return op.graph.get_operation_by_name(name)
        except KeyError:
            continue
    return None


def is_of_a_library(frame: Any) -> bool:
    """Whether a frame of an op's traceback is TensorFlow's or Keras's."""
    return _owner(frame.filename) == "library"


def _is_users(frame: Any) -> bool:
    return _owner(frame.filename) == "user"


# A graph's thousands of tracebacks go through a few files.
@functools.lru_cache(maxsize=4096)
def _owner(filename: str) -> str:
    path = os.path.abspath(filename)
    if any(part in path for part in _LIBRARIES):
        return "library"
    return "package" if path.startswith(_PACKAGE + os.sep) else "user"
