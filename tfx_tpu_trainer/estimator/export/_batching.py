"""Batches the requests of a server around a computation, so that a TPU sees few shapes."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class _BatchFields(NamedTuple):
    num_batch_threads: int
    max_batch_size: int
    batch_timeout_micros: int
    allowed_batch_sizes: Sequence[int] | None
    max_enqueued_batches: int


class BatchConfig(_BatchFields):
    """How requests are combined into batches; mirrors the original's named tuple.

    A TPU compiles a program for each shape that it sees. With `allowed_batch_sizes` batches are padded up to one of
    those sizes, which limits the number of programs.

    Example:
    ```python
    BatchConfig(
        num_batch_threads=4,
        max_batch_size=64,
        batch_timeout_micros=5000,
        allowed_batch_sizes=[8, 64],
    )
    ```
    """

    __slots__ = ()

    def __new__(
        cls,
        num_batch_threads: int,
        max_batch_size: int,
        batch_timeout_micros: int,
        allowed_batch_sizes: Sequence[int] | None,
        max_enqueued_batches: int = 100,
    ) -> BatchConfig:
        """Checks the numbers: TensorFlow would look at them only when a server loads the model."""
        for name, value, least in (
            ("num_batch_threads", num_batch_threads, 1),
            ("max_batch_size", max_batch_size, 1),
            ("batch_timeout_micros", batch_timeout_micros, 0),
            ("max_enqueued_batches", max_enqueued_batches, 1),
        ):
            if not _is_integer(value) or value < least:
                raise ValueError(
                    f"{name} must be at least {least}, got: {value!r}. To serve without batching, "
                    "leave the batch_config out."
                )
        sizes = list(allowed_batch_sizes or ())
        if not all(map(_is_integer, sizes)) or (
            sizes and (sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != max_batch_size)
        ):
            raise ValueError(
                "allowed_batch_sizes must increase and end with max_batch_size "
                f"({max_batch_size}), got: {sizes}."
            )
        return super().__new__(
            cls,
            num_batch_threads=num_batch_threads,
            max_batch_size=max_batch_size,
            batch_timeout_micros=batch_timeout_micros,
            allowed_batch_sizes=allowed_batch_sizes,
            max_enqueued_batches=max_enqueued_batches,
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def call_in_batches(
    function: Callable[..., Any], inputs: Sequence[tf.Tensor], config: BatchConfig | None
) -> Any:
    """Calls a function of tensors from the default graph, through a `BatchFunction` op.

    The op belongs to the model: it batches whatever server loads it.
    """
    if config is None:
        return function(*inputs)
    _check_rows(inputs, "input")
    made_inside: list[tf.Tensor] = []

    def in_batch(*batch: tf.Tensor) -> Any:
        results = function(*batch)
        made_inside[:] = tf.nest.flatten(results)
        _check_rows(made_inside, "result")
        return results

    results = tf.nondifferentiable_batch_function(**config._asdict(), autograph=False)(in_batch)(
        *inputs
    )
    # The op itself says nothing of shapes. Its rows are those of a request, not of a batch.
    for result, inside in zip(tf.nest.flatten(results), made_inside, strict=True):
        result.set_shape(tf.TensorShape([None]).concatenate(inside.shape[1:]))
    return results


def _check_rows(tensors: Sequence[Any], what: str) -> None:
    for tensor in tensors:
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"Batching takes dense tensors only, got the {what} {tensor!r}. Make it dense "
                "(tf.sparse.to_dense), or serve without batching."
            )
        if tensor.shape.rank == 0:
            raise ValueError(
                f"The {what} {tensor.name!r} of a batched computation is a scalar: rows of several "
                "requests are concatenated along axis 0. Give it a batch axis."
            )
