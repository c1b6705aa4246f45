"""Folders of output artifacts: filled by copies, and emptied again when an execution fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def emptied_on_failure(*folders: str) -> Iterator[None]:
    """Removes what the block has put into folders if it fails.

    The folders stay: TFX's launcher removes those of a failed execution, and where one is missing it
    reports that in place of the failure.

    Args:
        *folders: The folders.
    """
    try:
        yield
    except BaseException:
        for folder in folders:
            if tf.io.gfile.isdir(folder):
                tf.io.gfile.rmtree(folder)
                tf.io.gfile.makedirs(folder)
        raise


def copy_folder(source: str, target: str) -> None:
    """Copies a folder with all below it.

    Args:
        source: The folder.
        target: Where its files go; made where it is missing.
    """
    source = source.rstrip("/")
    tf.io.gfile.makedirs(target)
    for folder, _, names in tf.io.gfile.walk(source):
        into = os.path.join(target, folder[len(source) :].strip("/"))
        tf.io.gfile.makedirs(into)
        for name in names:
            tf.io.gfile.copy(os.path.join(folder, name), os.path.join(into, name), overwrite=True)
