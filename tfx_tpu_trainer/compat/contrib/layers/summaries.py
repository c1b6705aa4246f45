"""Summaries of tensors by their kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def summarize_tensor(tensor: Any, tag: str | None = None) -> Any:
    """Writes a scalar, or the histogram of another tensor.

    Args:
        tensor: The tensor.
        tag: The summary's name. Defaults to `None`, the tensor's with `_summary`.

    Returns:
        The summary op; `None` for strings and booleans.
    """
    if tensor.dtype.base_dtype in (tf.string, tf.bool):
        return None
    tag = tag or f"{tensor.op.name}_summary"
    kind = v1.summary.scalar if tensor.shape.rank == 0 else v1.summary.histogram
    return kind(tag, tensor)


def summarize_collection(
    collection: str,
    name_filter: str | None = None,
    summarizer: Callable[[Any], Any] = summarize_tensor,
) -> list[Any]:
    """Writes a summary of each tensor in a collection.

    Args:
        collection: The collection.
        name_filter: A regular expression that names begin with. Defaults to `None`, all.
        summarizer: Writes one. Defaults to `summarize_tensor`.

    Returns:
        What it returns of each.
    """
    found = v1.get_collection(collection)
    wanted = [each for each in found if name_filter is None or re.match(name_filter, each.op.name)]
    return [summarizer(each) for each in wanted]
