"""Finds the latest checkpoint of a folder, reads its values, and checks that the folder can be written."""

import os

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import try_writing
from tfx_tpu_trainer.estimator._engine.checkpointing import restored_variables
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import wait_for_writes
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import (
    checkpoint_paths,
    damaged,
    newest_sound_checkpoint,
    open_checkpoint,
)

v1 = tf.compat.v1

_STATE_FILE = "checkpoint"
# A trainer may replace the checkpoint between reading the file and opening what it names.
_LOOKS = 3


def latest_checkpoint(model_dir: str) -> str | None:
    """Returns the path of a folder's latest checkpoint, or `None`; waits for one that a thread is writing."""
    wait_for_writes(model_dir)
    state = os.path.join(model_dir, _STATE_FILE)
    reason = "names a checkpoint that does not exist"
    # Reading a pipe would wait forever.
    is_odd = os.path.exists(state) and not os.path.isfile(state)
    if is_odd:
        reason = "is not a file"
    for _ in range(0 if is_odd else _LOOKS):
        try:
            path = tf.train.latest_checkpoint(model_dir)
        # The error depends on the damage: an empty file, bytes that are not text, a folder.
        except (ValueError, OSError, tf.errors.OpError) as error:
            path, reason = None, f"can't be read ({str(error).splitlines()[0]})"
        if path is not None or not tf.io.gfile.exists(state):
            return path
    sound = newest_sound_checkpoint(model_dir)
    advice = "remove it to train from scratch"
    if sound:
        advice = (
            f"the latest readable checkpoint is {sound}: write its name into the file with "
            f"tf.compat.v1.train.update_checkpoint_state({model_dir!r}, "
            f"{os.path.basename(sound)!r})"
        )
    raise tf.errors.DataLossError(
        None, None, f"{state} {reason}: it was changed after it was written; {advice}."
    )


def unnamed_checkpoints(model_dir: str) -> str:
    """Returns advice that names the last checkpoint of a folder without a state file; `""` if there is none."""
    paths = checkpoint_paths(model_dir)
    if not paths:
        return ""
    name = os.path.basename(paths[-1])
    return (
        f" It has {name}, but no file {_STATE_FILE!r} that names the latest checkpoint: give checkpoint_path, or write "
        f"the file, with tf.compat.v1.train.update_checkpoint_state({model_dir!r}, {name!r})."
    )


def require_checkpoint(model_dir: str) -> str:
    """Returns the path of the latest checkpoint of a folder."""
    path = latest_checkpoint(model_dir)
    if path is None:
        raise ValueError(
            f"Could not find trained model in model_dir: {model_dir}. Train first, or name the "
            "folder of a trained model."
        )
    return path


def global_step_of(model_dir: str) -> int:
    """Returns the global step of the latest checkpoint of a folder; 0 if there is none."""
    path = latest_checkpoint(model_dir)
    if path is None:
        return 0
    key = restored_variables.key_of(path, v1.GraphKeys.GLOBAL_STEP)
    return 0 if key is None else int(_read(path, key))


def variable_names(model_dir: str) -> list[str]:
    """Returns the names of the variables in the latest checkpoint of a folder."""
    return sorted(open_checkpoint(require_checkpoint(model_dir)).get_variable_to_shape_map())


def variable_value(model_dir: str, name: str) -> np.ndarray:
    """Returns the value of a variable in the latest checkpoint of a folder."""
    path = require_checkpoint(model_dir)
    reader = open_checkpoint(path)
    name = name.removesuffix(":0")
    if not reader.has_tensor(name):
        known = ", ".join(sorted(reader.get_variable_to_shape_map()))
        raise tf.errors.NotFoundError(
            None, None, f"Key {name} not found in checkpoint {path}; it has: {known}."
        )
    return _read(path, name)


def _read(path: str, key: str) -> np.ndarray:
    try:
        return open_checkpoint(path).get_tensor(key)
    except (IndexError, RuntimeError, tf.errors.OpError) as error:
        if isinstance(error, tf.errors.DataLossError):
            raise
        raise damaged(path, str(error)) from error


def check_writable(folder: str) -> None:
    """Makes a folder if there is none, and writes to it."""
    try:
        try_writing(folder)
    except tf.errors.OpError as error:
        raise type(error)(
            None,
            None,
            f"model_dir {folder!r} can't be written: {error.message}. Give another model_dir, or "
            "permission to write to this one.",
        ) from error
