"""Names of an input's tensors, as a user would write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf


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
    """Says in which tensor two inputs differ.

    Args:
        first: A pair (features, labels).
        second: Another one.

    Returns:
        The first tensor that one of them lacks, or whose type or shape differs; `None` where
        there is none.
    """
    named, others = named_leaves(*first), named_leaves(*second)
    for name in {**named, **others}:
        if name not in named or name not in others:
            return f"{name} is in one of them only"
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
