"""A folder of checkpoints: which is the latest, what is in it, and whether it can be written."""

from __future__ import annotations

import os
import uuid

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.engine.checkpointing import checkpoint_fit
from tfx_tpu_trainer.engine.checkpointing.checkpoint_damage import open_checkpoint

v1 = tf.compat.v1


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path of the latest checkpoint of a folder, or `None`."""
    return tf.train.latest_checkpoint(model_dir)


def require_checkpoint(model_dir: str) -> str:
    """Returns the path of the latest checkpoint of a folder.

    Raises:
        ValueError: If there is none.
    """
    path = latest_checkpoint(model_dir)
    if path is None:
        raise ValueError(
            f"Could not find trained model in model_dir: {model_dir}. Train first, or name the "
            "folder of a trained model."
        )
    return path


def global_step_of(model_dir: str) -> int:
    """Returns the global step of the latest checkpoint of a folder; 0 where there is none."""
    path = latest_checkpoint(model_dir)
    if path is None:
        return 0
    key = checkpoint_fit.key_of(path, v1.GraphKeys.GLOBAL_STEP)
    return 0 if key is None else int(open_checkpoint(path).get_tensor(key))


def variable_names(model_dir: str) -> list[str]:
    """Returns the names of the variables in the latest checkpoint of a folder."""
    return sorted(open_checkpoint(require_checkpoint(model_dir)).get_variable_to_shape_map())


def variable_value(model_dir: str, name: str) -> np.ndarray:
    """Returns the value of a variable in the latest checkpoint of a folder.

    Raises:
        ValueError: If there is no checkpoint.
        tf.errors.NotFoundError: If it has no such variable.
    """
    path = require_checkpoint(model_dir)
    reader = open_checkpoint(path)
    name = name.removesuffix(":0")
    if not reader.has_tensor(name):
        known = ", ".join(sorted(reader.get_variable_to_shape_map()))
        raise tf.errors.NotFoundError(
            None, None, f"Key {name} not found in checkpoint {path}; it has: {known}."
        )
    return reader.get_tensor(name)


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
