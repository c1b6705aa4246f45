"""What is said of a checkpoint that can't be written, and what becomes of what there is of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import tensorflow as tf

_REASON = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Permission denied|Read-only file system"
)
# TensorFlow says so of a file that it has just written itself.
_GONE = re.compile(r"([^\s;]+)(?:; No such file or directory| did not exist| not found)")
_FOLDER = re.compile(r"[^\n]*; Is a directory")
# TensorFlow's names for what it has not yet renamed.
_UNFINISHED = re.compile(r"\.tmp[0-9a-f]{32}$|\.tempstate\d+$|_temp$")


@contextlib.contextmanager
def write_errors_explained(folder: str) -> Iterator[None]:
    """Names the folder and the way out where a checkpoint can't be written, and removes what there is of it."""
    try:
        yield
    except tf.errors.OpError as error:
        if in_the_way := _FOLDER.search(error.message):
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"A checkpoint can't be written to {folder} ({in_the_way[0]}): a folder has the "
                "name of one of its files. Remove that folder, or give another model_dir.",
            ) from None
        gone = _GONE.search(error.message)
        if gone and gone[1].startswith(folder):
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"A checkpoint can't be written to {folder} ({os.path.basename(gone[1])} is gone): "
                "another process trains in this folder, or removes its files. Let one at a time use "
                "it, or give another model_dir. Training will resume from the last complete "
                "checkpoint.",
            ) from None
        reason = _REASON.search(error.message)
        if reason is None:
            raise
        with contextlib.suppress(tf.errors.OpError):
            _remove_unfinished(folder)
        raise tf.errors.ResourceExhaustedError(
            None,
            None,
            f"A checkpoint can't be written to {folder} ({reason[0]}): free space on its disk, or "
            "give a model_dir that this user may write to. Training will resume from the last "
            "complete checkpoint.",
        ) from None


def _remove_unfinished(folder: str) -> None:
    gfile = tf.io.gfile
    for name in gfile.listdir(folder):
        path = os.path.join(folder, name)
        if not _UNFINISHED.search(name.rstrip("/")):
            continue
        if gfile.isdir(path):
            gfile.rmtree(path)
        else:
            gfile.remove(path)
