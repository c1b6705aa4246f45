"""Reads back the event files that a test has made, and finds those that are open."""

import glob
import os
from pathlib import Path
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


def open_files(folder: Path) -> set[str]:
    """The folders below one in which this process has a file open."""
    links = Path("/proc/self/fd").iterdir()
    paths = [Path(os.readlink(link)) for link in links if link.is_symlink()]
    return {str(path.parent.relative_to(folder)) for path in paths if folder in path.parents}


def _content(value: v1.Summary.Value) -> Any:
    if value.HasField("tensor"):
        content = tf.make_ndarray(value.tensor)
        return content.item() if content.ndim == 0 else content
    return value.simple_value
