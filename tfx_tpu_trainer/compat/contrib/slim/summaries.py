"""Writes summaries of single numbers."""

from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

v1 = tf.compat.v1

__all__ = ["add_scalar_summary"]


def add_scalar_summary(
    tensor: Any, name: str | None = None, prefix: str | None = None, print_summary: bool = False
) -> tf.Tensor:
    """Writes a number."""
    # The tag is the name alone, without the name scope around it.
    tag = f"{prefix}/{name or tensor.op.name}" if prefix else name or tensor.op.name
    made = v1.summary.scalar(tag, tensor, collections=[])
    if print_summary:
        made = without_notice(v1.Print)(made, [tensor], tag)
    v1.add_to_collection(v1.GraphKeys.SUMMARIES, made)
    return made
