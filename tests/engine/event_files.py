"""Reads back the event files that a test has made."""

from __future__ import annotations

import glob
import os
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def read_values(folder: Any) -> dict[str, dict[int, Any]]:
    """Everything summarized in a folder: tag -> step -> number, array or bytes."""
    v1.summary.FileWriterCache.clear()
    values: dict[str, dict[int, Any]] = {}
    for path in sorted(glob.glob(os.path.join(folder, "events*"))):
        for event in v1.train.summary_iterator(path):
            for value in event.summary.value:
                values.setdefault(value.tag, {})[event.step] = _content(value)
    return values


def _content(value: v1.Summary.Value) -> Any:
    if value.HasField("tensor"):
        content = tf.make_ndarray(value.tensor)
        return content.item() if content.ndim == 0 else content
    return value.simple_value
