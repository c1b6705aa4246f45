"""The private TensorFlow names that lowering a graph to HLO needs.

| name | why | if it goes away |
|---|---|---|
| `context.eager_mode` | lowering starts eagerly, and a user's module may have switched eager execution off | lower in a fresh process |
| `Context.add_function_def`, `Context.remove_function` | functions that come with a GraphDef (bodies of loops, calls of an export) are unknown to the eager runtime, which compiles | inline the functions into the graph |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import tensorflow as tf
from tensorflow.python.eager import context

v1 = tf.compat.v1


@contextlib.contextmanager
def eager_with_functions(functions: Iterable[v1.FunctionDef]) -> Iterator[None]:
    """Executes the block eagerly, with functions that TensorFlow does not know yet."""
    added = []
    with context.eager_mode():
        try:
            for function in functions:
                context.context().add_function_def(function)
                added.append(function.signature.name)
            yield
        finally:
            for name in added:
                context.context().remove_function(name)
