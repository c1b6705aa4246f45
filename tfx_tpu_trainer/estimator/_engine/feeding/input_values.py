"""What an input_fn returned: values made tensors, its rows counted, its tensors named as a user would write them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def as_tensors(structure: Any) -> Any:
    """Makes a tensor of each value of an input.

    A number, a string or an array is one; so is a list or tuple of scalars, however deeply nested.
    Lists and tuples of tensors or arrays that have rows of their own are structure.
    """
    if all(_is_tensor(leaf) and not _is_variable(leaf) for leaf in _values(structure)):
        return structure
    return _map_values(_as_tensor, structure)


def count_rows(*structures: Any) -> tf.Tensor | None:
    """Counts the rows of a batch: axis 0 of its first value that has one.

    Args:
        *structures: Features and labels: nested structures of dense, sparse or ragged tensors and
            of what `as_tensors` makes tensors of.

    Returns:
        An int64 scalar tensor, or `None` when no value has an axis.
    """
    for leaf in itertools.chain.from_iterable(map(_values, structures)):
        if isinstance(leaf, (tf.SparseTensor, v1.SparseTensorValue)):
            return tf.cast(leaf.dense_shape[0], tf.int64)
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int64)
        if not _is_tensor(leaf):
            if isinstance(leaf, (list, tuple)) or np.ndim(leaf):
                return tf.constant(len(leaf), tf.int64)
        elif leaf.shape.rank != 0:
            return tf.shape(leaf, out_type=tf.int64)[0]
    return None


def is_number(leaf: Any) -> bool:
    """Tells whether a tensor is a scalar whose value is known: the same in every batch."""
    scalar = isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0
    return scalar and tf.get_static_value(leaf) is not None


def _values(structure: Any) -> Iterator[Any]:
    """Yields what is one tensor, or can be made one, in the order of `tf.nest`."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _values(structure[key])
    elif _is_structure(structure):
        for part in structure:
            yield from _values(part)
    elif structure is not None:
        yield structure


def _map_values(function: Callable[[Any], Any], structure: Any) -> Any:
    if isinstance(structure, Mapping):
        mapped = {key: _map_values(function, part) for key, part in structure.items()}
        return type(structure)(mapped) if isinstance(structure, dict) else mapped
    if _is_structure(structure):
        parts = [_map_values(function, part) for part in structure]
        return type(structure)(*parts) if _is_named(structure) else type(structure)(parts)
    return None if structure is None else function(structure)


def _is_structure(value: Any) -> bool:
    """Tells whether a value is a list or tuple of several tensors rather than one."""
    if not isinstance(value, (list, tuple)) or _is_tensor(value):
        return False
    leaves = tf.nest.flatten(value)
    if _is_named(value) or not all(map(_is_scalar, leaves)):
        return True
    return isinstance(value, tuple) and (not leaves or any(map(_is_tensor, leaves)))


def _is_scalar(leaf: Any) -> bool:
    if _is_tensor(leaf):
        return isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0
    return leaf is not None and not np.ndim(leaf)


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or isinstance(value, v1.SparseTensorValue)


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def _is_named(value: Any) -> bool:
    return hasattr(value, "_fields")


def _as_tensor(value: Any) -> Any:
    if _is_tensor(value) and not _is_variable(value):
        return value
    return tf.convert_to_tensor(value)


def named_leaves(features: Any, labels: Any) -> dict[str, Any]:
    """Names the tensors of an input.

    Args:
        features: Nested structure of tensors.
        labels: The same, or `None`.

    Returns:
        Name, such as `features['x']` or `labels`, -> tensor, in the order in which a Dataset
        counts its components.
    """
    named = dict(_walk("features", features))
    return named if labels is None else {**named, **dict(_walk("labels", labels))}


def structure_difference(first: Any, second: Any) -> str | None:
    """Says in which tensor two inputs differ."""
    named, others = named_leaves(*first), named_leaves(*second)
    for name in {**named, **others}:
        if name not in named or name not in others:
            return f"{name} is in only one of them"
        one, other = named[name], others[name]
        if one.dtype != other.dtype or not one.shape.is_compatible_with(other.shape):
            return (
                f"{name} is {one.dtype.name} {one.shape} in one and {other.dtype.name} "
                f"{other.shape} in another"
            )
    return None


def _walk(name: str, structure: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _walk(f"{name}[{key!r}]", structure[key])
    elif isinstance(structure, (tuple, list)) and not tf.is_tensor(structure):
        fields = getattr(structure, "_fields", None)
        for index, part in enumerate(structure):
            yield from _walk(f"{name}.{fields[index]}" if fields else f"{name}[{index}]", part)
    elif structure is not None:
        yield name, structure
