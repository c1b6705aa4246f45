"""Checks how a model-parallel replica wants its input cut over its cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


def check_input_partitions(
    dims: Sequence[Any] | None, *, features: Any, labels: Any, num_cores_per_replica: int
) -> None:
    """Checks `TPUConfig(input_partition_dims=...)` against one replica's input.

    An emulated replica runs as one, whatever its number of cores, so nothing is cut; but what a
    TPU would refuse is refused here too.

    Args:
        dims: The partition counts, of the features and, if given, of the labels; `None` checks
            nothing.
        features: One replica's features.
        labels: One replica's labels, or `None`.
        num_cores_per_replica: Cores of the replica.

    Raises:
        ValueError: If the counts do not fit the input or the cores.
    """
    if dims is None:
        return
    _check_structure(dims[0], features, index=0, kind="feature", cores=num_cores_per_replica)
    if len(dims) > 1 and labels is not None:
        _check_structure(dims[1], labels, index=1, kind="label", cores=num_cores_per_replica)


def _check_structure(dims: Any, tensors: Any, *, index: int, kind: str, cores: int) -> None:
    if dims is None:
        return
    where = f"TPUConfig.input_partition_dims[{index}]"
    expected, got = (sorted(a) if isinstance(a, Mapping) else [] for a in (tensors, dims))
    if expected != got:
        raise ValueError(f"{where} mismatched {kind} keys. Expected {expected}, got {got}.")
    try:
        _check_nested(where, dims, tensors, cores)
    except TypeError as error:
        raise ValueError(
            f"{where} mismatched the structure of {kind}s. input_partition_dims[{index}]: "
            f"{dims!r}, {kind}s: {tensors!r}. {error}"
        ) from error


def _check_nested(where: str, dims: Any, tensors: Any, cores: int) -> None:
    """Goes down mappings and tuples: a list is the counts of one tensor."""
    if isinstance(tensors, Mapping):
        if not isinstance(dims, Mapping) or set(dims) != set(tensors):
            raise TypeError(f"{where} must have the keys {sorted(tensors)}; got {dims!r}.")
        for key, tensor in tensors.items():
            _check_nested(f"{where}[{key!r}]", dims[key], tensor, cores)
    elif isinstance(tensors, tuple):
        if not isinstance(dims, tuple) or len(dims) != len(tensors):
            raise TypeError(f"{where} must be a tuple of {len(tensors)}; got {dims!r}.")
        for number, (part, tensor) in enumerate(zip(dims, tensors, strict=True)):
            _check_nested(f"{where}[{number}]", part, tensor, cores)
    else:
        _check_counts(where, dims, tensors, cores)


def _check_counts(where: str, counts: Any, tensor: tf.Tensor, cores: int) -> None:
    if counts is None:
        return
    if any(count < 1 for count in counts):
        raise ValueError(f"All input partition dims must be >= 1. {where} is {list(counts)}.")
    if math.prod(counts) == 1:
        return
    if math.prod(counts) != cores:
        raise ValueError(
            "The product of each input partition dim should equal to num_cores_per_replica. (dim = "
            f"{list(counts)}, num_cores_per_replica = {cores}), in {where}."
        )
    if len(counts) != tensor.shape.rank:
        raise ValueError(
            "Input partition dims must have the same number of dimensions as the `Tensor` to be "
            f"partitioned: {where} is {list(counts)} for shape {tensor.shape}."
        )
