"""How a replica's input is cut over its cores: `TPUConfig(input_partition_dims=...)`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.checking.shardings import not_divisible

_logger = tf.get_logger()


def check_input_partitions(
    dims: Sequence[Any] | None,
    *,
    features: Any,
    labels: Any,
    num_cores_per_replica: int,
    evenly: bool = False,
) -> None:
    """Checks `TPUConfig(input_partition_dims=...)` against one replica's input.

    An emulated replica runs as one, whatever its number of cores, so nothing is cut; but what a
    TPU would refuse is refused here too. A dimension that the counts do not divide is warned of: the
    original cuts it into pieces of which the last is smaller.

    Args:
        dims: The partition counts, of the features and, if given, of the labels; `None` checks
            nothing.
        features: One replica's features.
        labels: One replica's labels, or `None`.
        num_cores_per_replica: Cores of the replica.
        evenly: Whether such a dimension is refused, as where the pieces are sent to a TPU. Defaults to
            `False`.

    Raises:
        ValueError: If the counts do not fit the input or the cores.
    """
    for where, name, counts, tensor in _walk(dims, features, labels):
        _check_counts(where, name, counts, tensor, num_cores_per_replica, evenly=evenly)


def input_partitions(
    dims: Sequence[Any] | None, *, features: Any, labels: Any
) -> dict[str, Sequence[int]]:
    """Returns the parts of each input tensor that is cut.

    Args:
        dims: See `check_input_partitions`, which they have passed.
        features: One replica's features.
        labels: One replica's labels, or `None`.

    Returns:
        Name of the tensor -> its parts along each dimension.
    """
    return {
        tensor.name: list(counts)
        for _, _, counts, tensor in _walk(dims, features, labels)
        if counts is not None and math.prod(counts) > 1
    }


def _walk(
    dims: Sequence[Any] | None, features: Any, labels: Any
) -> Iterator[tuple[str, str, Any, tf.Tensor]]:
    """Yields where counts stand, what their tensor is called, the counts, and the tensor."""
    if dims is None:
        return
    yield from _of_structure(dims[0], features, index=0, kind="feature")
    if len(dims) > 1 and labels is not None:
        yield from _of_structure(dims[1], labels, index=1, kind="label")


def _of_structure(
    dims: Any, tensors: Any, *, index: int, kind: str
) -> Iterator[tuple[str, str, Any, tf.Tensor]]:
    if dims is None:
        return
    where = f"TPUConfig.input_partition_dims[{index}]"
    expected, got = (sorted(a) if isinstance(a, Mapping) else [] for a in (tensors, dims))
    if expected != got:
        raise ValueError(f"{where} mismatched {kind} keys. Expected {expected}, got {got}.")
    try:
        for path, counts, tensor in _nested(where, "", dims, tensors):
            yield where + path, f"{kind}s{path}", counts, tensor
    except TypeError as error:
        raise ValueError(
            f"{where} mismatched the structure of {kind}s. input_partition_dims[{index}]: "
            f"{dims!r}, {kind}s: {tensors!r}. {error}"
        ) from error


def _nested(
    where: str, path: str, dims: Any, tensors: Any
) -> Iterator[tuple[str, Sequence[int] | None, tf.Tensor]]:
    """Goes down mappings and tuples: a list is the counts of one tensor."""
    if isinstance(tensors, Mapping):
        if not isinstance(dims, Mapping) or set(dims) != set(tensors):
            raise TypeError(f"{where}{path} must have the keys {sorted(tensors)}; got {dims!r}.")
        for key, tensor in tensors.items():
            yield from _nested(where, f"{path}[{key!r}]", dims[key], tensor)
    elif isinstance(tensors, tuple):
        if not isinstance(dims, tuple) or len(dims) != len(tensors):
            raise TypeError(f"{where}{path} must be a tuple of {len(tensors)}; got {dims!r}.")
        for number, (part, tensor) in enumerate(zip(dims, tensors, strict=True)):
            yield from _nested(where, f"{path}[{number}]", part, tensor)
    elif dims is None or all(isinstance(count, numbers.Integral) for count in dims):
        yield path, dims, tensors
    else:
        raise TypeError(f"{where}{path} must be a list of integers; got {dims!r}.")


def _check_counts(
    where: str,
    name: str,
    counts: Sequence[int] | None,
    tensor: tf.Tensor,
    cores: int,
    *,
    evenly: bool,
) -> None:
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
    wrong = not_divisible(name, tensor.shape.as_list(), counts)
    if wrong is not None and evenly:
        raise ValueError(f"{where} is {list(counts)}. {wrong}")
    if wrong is not None:
        # The original takes it, so a program that trained there must train here.
        _logger.warning(
            "%s is %s. %s The last piece is smaller, or empty; a preflight refuses it.",
            where,
            list(counts),
            wrong,
        )
