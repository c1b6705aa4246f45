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
    if isinstance(dims, Mapping) != isinstance(tensors, Mapping):
        raise ValueError(
            f"{where} mismatched the structure of {kind}s. Expected one like {tensors!r}, got "
            f"{dims!r}."
        )
    if not isinstance(dims, Mapping):
        _check_counts(where, dims, tensors, cores)
        return
    if set(dims) != set(tensors):
        raise ValueError(
            f"{where} mismatched {kind} keys. Expected {sorted(tensors)}, got {sorted(dims)}."
        )
    for key, tensor in tensors.items():
        _check_counts(f"{where}[{key!r}]", dims[key], tensor, cores)


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
