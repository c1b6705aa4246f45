"""Summaries of single tensors and of lists of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

v1 = tf.compat.v1

__all__ = [
    "add_histogram_summaries",
    "add_histogram_summary",
    "add_image_summaries",
    "add_image_summary",
    "add_scalar_summaries",
    "add_scalar_summary",
    "add_zero_fraction_summaries",
    "add_zero_fraction_summary",
]


def _named(tensor: Any, name: str | None, prefix: str | None) -> str:
    short = name or tensor.op.name
    return f"{prefix}/{short}" if prefix else short


def _made(
    make: Callable[..., Any], tensor: Any, name: str | None, prefix: str | None, printed: bool
) -> tf.Tensor:
    # The name is the tag as it is: a name scope around it does not count.
    tag = _named(tensor, name, prefix)
    made = make(tag, tensor, collections=[])
    if printed:
        made = without_notice(v1.Print)(made, [tensor], tag)
    v1.add_to_collection(v1.GraphKeys.SUMMARIES, made)
    return made


def add_histogram_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None
) -> tf.Tensor:
    """Writes a histogram."""
    return v1.summary.histogram(_named(tensor, name, prefix), tensor)


def add_image_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> tf.Tensor:
    """Writes images."""
    return _made(v1.summary.image, tensor, name, prefix, print_summary)


def add_scalar_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> tf.Tensor:
    """Writes a number."""
    return _made(v1.summary.scalar, tensor, name, prefix, print_summary)


def add_zero_fraction_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> tf.Tensor:
    """Writes how much of a tensor is 0."""
    tag = f"{name or tensor.op.name}/Fraction_of_Zero_Values"
    return add_scalar_summary(tf.math.zero_fraction(tensor), tag, prefix, print_summary)


def add_histogram_summaries(tensors: Iterable[Any], prefix: str | None = None) -> list[tf.Tensor]:
    """Writes a histogram of each tensor."""
    return [add_histogram_summary(each, prefix=prefix) for each in tensors]


def add_image_summaries(tensors: Iterable[Any], prefix: str | None = None) -> list[tf.Tensor]:
    """Writes the images of each tensor."""
    return [add_image_summary(each, prefix=prefix) for each in tensors]


def add_scalar_summaries(
    tensors: Iterable[Any], prefix: str | None = None, print_summary: bool = False
) -> list[tf.Tensor]:
    """Writes each number."""
    return [
        add_scalar_summary(each, prefix=prefix, print_summary=print_summary) for each in tensors
    ]


def add_zero_fraction_summaries(
    tensors: Iterable[Any], prefix: str | None = None
) -> list[tf.Tensor]:
    """Writes how much of each tensor is 0."""
    return [add_zero_fraction_summary(each, prefix=prefix) for each in tensors]
