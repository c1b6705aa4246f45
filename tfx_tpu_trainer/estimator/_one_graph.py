"""Explains errors over what was made outside of input_fn and model_fn: an estimator calls them in a new graph."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checking.source_lines import source_line_of_error

v1 = tf.compat.v1

# TensorFlow's words where a graph is given what belongs to another one, or to eager execution.
_EAGER = "Attempting to capture an EagerTensor without building a function"
_SAYS_SO = re.compile(
    rf"{_EAGER}|Encountered an Eager-defined Tensor during graph construction|must be from the same "
    "graph as|The graph .* of the iterator is different from the graph"
)
_ADDRESSES = re.compile(r" \(graphs are .*\)|(?<=raph) <tensorflow\S+ object at \w+>")
_RULES = {
    # The original's sentence.
    "input_fn": "If you are using the Estimator API, make sure that no part of the dataset returned by the `input_fn` "
    "function is defined outside the `input_fn` function",
    "model_fn": "Make sure that all tensors and datasets that model_fn and input_fn use are made in these functions: "
    "an estimator calls them in a new graph",
}


@contextlib.contextmanager
def in_one_graph(function: str) -> Iterator[None]:
    """Adds to TensorFlow's error over a tensor or dataset of another graph what the function must not do, and where."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        said = str(error)
        is_explained = any(rule in said for rule in _RULES.values())
        if (
            type(error) not in (RuntimeError, ValueError)
            or is_explained
            or not _SAYS_SO.search(said)
        ):
            raise
        line = source_line_of_error(error)
        at = f" ({line})" if line else ""
        words = _ADDRESSES.sub("", said).rstrip(".")
        raise type(error)(f"{words}. {_RULES[function]}{at}.") from error


def check_dataset_is_inside(returned: Any) -> None:
    """Checks that a Dataset which input_fn returned can be read where input_fn was called."""
    if isinstance(returned, tf.data.Dataset) and not _is_here(
        variant := tf.data.experimental.to_variant(returned)
    ):
        raise ValueError(
            f"The graph of the iterator is different from the graph the dataset {returned} was created in: it was "
            f"made {_where(variant)}. {_RULES['input_fn']}."
        )


def check_tensors_are_inside(*structures: Any) -> None:
    """Checks that tensors which input_fn returned belong to the graph that is under construction."""
    for tensor in tf.nest.flatten(structures, expand_composites=True):
        if isinstance(tensor, tf.Tensor) and not _is_here(tensor):
            is_eager = not tf.is_symbolic_tensor(tensor)
            said = _EAGER if is_eager else f"{tensor} must be from the same graph as the model"
            raise (RuntimeError if is_eager else ValueError)(
                f"{said}: input_fn returned a tensor that was made {_where(tensor)}. {_RULES['model_fn']}."
            )


def _is_here(tensor: tf.Tensor) -> bool:
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(tensor)
    graph = v1.get_default_graph()
    # A function captures what it finds outside.
    return graph.building_function or (tf.is_symbolic_tensor(tensor) and tensor.graph is graph)


def _where(tensor: tf.Tensor) -> str:
    return "in another graph" if tf.is_symbolic_tensor(tensor) else "eagerly, in no graph"
