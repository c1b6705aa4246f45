"""Finds out that a folder can't be written before hours of training have to be thrown away."""

from __future__ import annotations

import os
import uuid

import tensorflow as tf


def check_writable(folder: str) -> None:
    """Makes a folder where there is none, and writes to it.

    Args:
        folder: Path of the folder.

    Raises:
        tf.errors.OpError: If it can't be made or written.
    """
    probe = os.path.join(folder, f".written_by_check_{uuid.uuid4().hex}")
    try:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise type(error)(
            None,
            None,
            f"model_dir {folder!r} can't be written: {error.message}. Give another model_dir, or "
            "the right to write to this one.",
        ) from error
