"""Iterators of tf.data written to a file and read back, in a session or eagerly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

v1 = tf.compat.v1

DESCRIPTION = "input"
"""The key under which a file describes its input."""

IGNORED, REFUSED = 1, 2
"""The policies for state outside tf.data, in Python code and random ops: leave it out, or raise an error."""

# The collection in which TensorFlow keeps the iterators of a graph.
_ITERATORS = "iterators"


class SavedInput(Protocol):
    """An input whose position can be written to a file.

    Attributes:
        description: What the input is, as far as it is the same in every process.
        host: Number of this process among those that draw a part of the input each.
        hosts: How many there are.
    """

    description: str
    host: int
    hosts: int

    def any_host(self, flag: bool) -> bool:
        """Tells whether a flag is set in any of the processes; to be asked by all of them at once."""

    def save(self, session: v1.Session, path: str, *, policy: int) -> None:
        """Writes the position."""

    def check(self, session: v1.Session, path: str) -> None:
        """Reads a position to its end and leaves the input as it is."""

    def restore(self, session: v1.Session, path: str) -> None:
        """Goes on from a position."""

    def start(self, session: v1.Session) -> None:
        """Goes on from the beginning."""


class SessionIterators:
    """The iterators of a graph, for a session; a `SavedInput`."""

    host, hosts = 0, 1

    def __init__(self, iterators: Sequence[tf.Tensor]) -> None:
        """Adds the ops to the default graph."""
        self.description = json.dumps([_description(iterator) for iterator in iterators])
        with tf.name_scope("input_position"), v1.device("/device:CPU:0"):
            self._prefix = v1.placeholder(tf.string, (), name="prefix")
            self._save = {
                policy: write(self._prefix, iterators, self.description, policy=policy)
                for policy in (REFUSED, IGNORED)
            }
            states = read(self._prefix, len(iterators))
            self._read = states[0].op
            self._restore = restore(iterators, states)
        self._start = [
            op
            for op in v1.get_default_graph().get_operations()
            if op.type == "MakeIterator" and any(op.inputs[1] is each for each in iterators)
        ]

    def any_host(self, flag: bool) -> bool:
        """Returns the flag: there is no other process."""
        return flag

    def save(self, session: v1.Session, path: str, *, policy: int) -> None:
        """Writes the position; see `SavedInput`."""
        session.run(self._save[policy], {self._prefix: path})

    def check(self, session: v1.Session, path: str) -> None:
        """Reads a position; see `SavedInput`."""
        session.run(self._read, {self._prefix: path})

    def restore(self, session: v1.Session, path: str) -> None:
        """Goes on from a position; see `SavedInput`."""
        session.run(self._restore, {self._prefix: path})

    def start(self, session: v1.Session) -> None:
        """Goes on from the beginning; see `SavedInput`."""
        session.run(self._start)


def iterators_of_default_graph() -> SessionIterators | None:
    """Returns the iterators of the default graph; `None` where it has none."""
    iterators = v1.get_collection(_ITERATORS)
    return SessionIterators(iterators) if iterators else None


def write(prefix: Any, iterators: Sequence[tf.Tensor], description: str, *, policy: int) -> Any:
    """Writes the state of iterators, in the format of a checkpoint.

    Args:
        prefix: Path of the checkpoint.
        iterators: Their handles.
        description: What is written beside them.
        policy: `REFUSED` or `IGNORED`.

    Returns:
        The op, where there is a graph.
    """
    states = [
        tf.raw_ops.SerializeIterator(resource_handle=iterator, external_state_policy=policy)
        for iterator in iterators
    ]
    return tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[DESCRIPTION, *_names(len(iterators))],
        shape_and_slices=[""] * (1 + len(iterators)),
        tensors=[tf.constant(description), *states],
    )


def read(prefix: Any, count: int) -> list[tf.Tensor]:
    """Reads the states of iterators."""
    return tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=_names(count),
        shape_and_slices=[""] * count,
        dtypes=[tf.variant] * count,
    )


def restore(iterators: Sequence[tf.Tensor], states: Sequence[tf.Tensor]) -> list[Any]:
    """Sets iterators to the states that were read; returns the ops, where there is a graph."""
    return [
        tf.raw_ops.DeserializeIterator(resource_handle=iterator, serialized=state)
        for iterator, state in zip(iterators, states, strict=True)
    ]


def _names(count: int) -> list[str]:
    return [f"iterator_{number}" for number in range(count)]


def _description(iterator: tf.Tensor) -> list[Any]:
    """Describes what makes an input, as far as it is the same in every process.

    Names are not; nor where files are, which may have been moved.
    """
    if iterator.op.type == "OneShotIterator":
        name = iterator.op.get_attr("dataset_factory").name
        library = v1.get_default_graph().as_graph_def().library.function
        nodes: Iterable[v1.NodeDef] = next(f.node_def for f in library if f.signature.name == name)
        return sorted(node.op for node in nodes)
    made = [op for op in iterator.consumers() if op.type == "MakeIterator"]
    pending = [op.inputs[0].op for op in made]
    described: list[Any] = []
    while pending:
        op = pending.pop()
        numbers = [int(tf.get_static_value(tensor)) for tensor in op.inputs if _is_number(tensor)]
        if op.type == "TensorSliceDataset":  # Slices are batches where these are cut out of arrays.
            numbers += [size for tensor in op.inputs for size in tensor.shape[1:].as_list()]
        described.append([op.type, *numbers])
        pending += [tensor.op for tensor in op.inputs if tensor.dtype == tf.variant]
    return described


def _is_number(tensor: tf.Tensor) -> bool:
    value = (
        tf.get_static_value(tensor) if tensor.dtype.is_integer and not tensor.shape.rank else None
    )
    return value is not None
