"""Finds the line of the user's code that made an op or failed, and the mappings in which it looked up a key."""

import ast
import functools
import linecache
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.messages import is_of_this_package

# Folders of libraries: the user's line is the last one outside of them and of this package.
_LIBRARIES = tuple(
    f"{os.sep}{name}{os.sep}" for name in ("tensorflow", "tensorboard", "keras", "tf_keras")
)

# `gradients/dense/MatMul_grad/MatMul_1` is an op of the gradient of `dense/MatMul`.
_OF_A_GRADIENT = re.compile(r"gradients(?:_\d+)?/(.+?)_grad(?:_\d+)?(?:/|$)")


def source_line(op: tf.Operation) -> str | None:
    """Finds the line of the user's code that made an op.

    Args:
        op: An op of a graph. For an op of a gradient's computation, the line is that of the op whose gradient it is.

    Returns:
        `"FILE:NUMBER: CODE"`, without the code if the file can't be read; `None` if the line is unknown.
    """
    forward = _forward_op(op)
    frames = [frame for frame in (forward or op).traceback or () if _is_users(frame)]
    if not frames:
        return None
    return _shown(frames[-1].filename, frames[-1].lineno)


def shown_source_line(op: tf.Operation) -> str:
    """Returns the line of `source_line` for a message."""
    return source_line(op) or "source line unknown"


def source_line_of_error(error: BaseException) -> str | None:
    """Finds the innermost line of the user's code in an exception's traceback, in the form of `source_line`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame)]
    return _shown(frames[-1].filename, frames[-1].lineno) if frames else None


def mappings_looked_up_in(error: KeyError, key: Any) -> Iterator[Mapping[Any, Any]]:
    """Yields the mappings in which the user's line that raised a KeyError looks up the key."""
    frames = [
        (frame, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if _owner(frame.f_code.co_filename) == "user"
    ]
    if not frames:
        return
    # The user's innermost frame: those after it are inside a mapping of this package.
    frame, number = frames[-1]
    names = {**frame.f_globals, **frame.f_locals}
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            of, looked_up = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            of, looked_up = node.func.value, node.args[0]
        else:
            continue
        if not (isinstance(of, ast.Name) and node.lineno <= number <= (node.end_lineno or 0)):
            continue
        is_key = isinstance(looked_up, ast.Constant) and looked_up.value == key
        is_named = isinstance(looked_up, ast.Name) and names.get(looked_up.id) == key
        if (is_key or is_named) and isinstance(names.get(of.id), Mapping):
            yield names[of.id]


def _shown(filename: str, number: int | None) -> str:
    code = linecache.getline(filename, number or 0).strip()
    return f"{filename}:{number}: {code}" if code else f"{filename}:{number}"


def _forward_op(op: tf.Operation) -> tf.Operation | None:
    """Returns the op whose gradient an op computes, by the name that TensorFlow gives gradients."""
    found = _OF_A_GRADIENT.search(op.name)
    if not found:
        return None
    # Names of gradients are below the name scope in which minimize() was called.
    for name in (op.name[: found.start()] + found[1], found[1]):
        try:
            return op.graph.get_operation_by_name(name)
        except KeyError:
            continue
    return None


def is_of_a_library(frame: Any) -> bool:
    """Returns whether a frame of an op's traceback is TensorFlow's or Keras's."""
    return _owner(frame.filename) == "library"


def _is_users(frame: Any) -> bool:
    return _owner(frame.filename) == "user"


# A graph has thousands of tracebacks, through a few files.
@functools.lru_cache(maxsize=4096)
def _owner(filename: str) -> str:
    path = os.path.abspath(filename)
    if any(part in path for part in _LIBRARIES):
        return "library"
    return "package" if is_of_this_package(path) else "user"
