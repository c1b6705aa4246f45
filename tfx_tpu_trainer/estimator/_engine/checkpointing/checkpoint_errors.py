"""Explains why a checkpoint can't be read or written, and what to do."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import (
    as_pattern,
    check_can_be_opened,
    check_is_no_pattern,
)

v1 = tf.compat.v1


class NoCheckpointError(tf.errors.NotFoundError, ValueError):
    """No checkpoint is at a path: TensorFlow's NotFoundError, and the ValueError of the original's Saver."""


def open_checkpoint(path: str) -> Any:
    """Opens a checkpoint for reading."""
    if not isinstance(path, str):
        raise TypeError(
            f"The name of a checkpoint is a string such as 'model.ckpt-100', not {path!r}."
        )
    check_can_be_opened("checkpoint_path", path)
    check_is_no_pattern("checkpoint_path", path)
    if problem := _no_checkpoint(path):
        raise NoCheckpointError(
            None, None, f"The passed save_path is not a valid checkpoint: {path}. {problem}."
        )
    try:
        return v1.train.NewCheckpointReader(path)
    except tf.errors.OpError as error:
        raise damaged(path, error.message) from error


@contextlib.contextmanager
def damage_explained(path: str | None) -> Iterator[None]:
    """Explains an error in restoring a checkpoint that is damaged."""
    try:
        yield
    except (
        tf.errors.OutOfRangeError,
        tf.errors.DataLossError,
        tf.errors.NotFoundError,
        # A folder has the name of one of its files.
        tf.errors.FailedPreconditionError,
    ) as error:
        damage = None if path is None else find_damage(path)
        if path is None or damage is None:
            raise
        raise damaged(path, damage) from error


def find_damage(path: str) -> str | None:
    """Reads a checkpoint to its end.

    Args:
        path: Path of the checkpoint.

    Returns:
        The error; `None` if every value can be read.
    """
    try:
        reader = v1.train.NewCheckpointReader(path)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except Exception as error:  # depends on the damage: IndexError, RuntimeError, OpError
        return str(error)
    return None


def last_sound_checkpoint_before(path: str) -> str | None:
    """Returns the latest checkpoint of the same folder that can be read; `None` if there is none."""
    named = re.search(r"-(\d+)$", path)
    for step, other in sorted(_steps_and_paths(os.path.dirname(path)), reverse=True):
        earlier = named is None or step < int(named[1])
        if other != path and earlier and find_damage(other) is None:
            return other
    return None


def newest_sound_checkpoint(folder: str) -> str | None:
    """Returns the latest checkpoint of a folder that can be read; `None` if there is none."""
    found = sorted(_steps_and_paths(folder), reverse=True)
    return next((path for _, path in found if find_damage(path) is None), None)


def checkpoint_paths(folder: str) -> list[str]:
    """Returns the paths of a folder's checkpoints, sound or not, by their steps."""
    return [path for _, path in _steps_and_paths(folder)]


def damaged(path: str, damage: str) -> tf.errors.DataLossError:
    """Returns the error for a damaged checkpoint, with advice."""
    sound = last_sound_checkpoint_before(path)
    folder, name = os.path.split(sound or path)
    advice = (
        "no earlier checkpoint of its folder can be read either: start a new training in another "
        "model_dir"
    )
    if sound:
        advice = (
            f"the latest readable one before it is {sound}: give it as checkpoint_path, or "
            "continue training from it after "
            f"tf.compat.v1.train.update_checkpoint_state({folder!r}, {name!r})"
        )
    return tf.errors.DataLossError(
        None,
        None,
        f"The checkpoint {path} can't be read ({_first_line(damage)}): it was cut off or changed "
        f"after it was written; {advice}.",
    )


def _no_checkpoint(path: str) -> str | None:
    """Explains why there is no checkpoint at a path; `None` if there is one."""
    # On stores where folders are prefixes of names, a checkpoint's prefix may look like a folder.
    if tf.io.gfile.isdir(path) and not tf.io.gfile.exists(f"{path}.index"):
        return f"It is a folder: give one of its checkpoints, which are {_names(path)}"
    of_a_file = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path)
    if of_a_file != path and tf.io.gfile.exists(f"{of_a_file}.index"):
        return f"It is one of a checkpoint's files: give {of_a_file}"
    # A file of exactly that name is a checkpoint of TensorFlow 0, which can still be read.
    if tf.io.gfile.exists(f"{path}.index") or tf.io.gfile.glob(path):
        return None
    return (
        f"{path}.index does not exist; its folder has {_names(os.path.dirname(path)) or 'no other'}"
    )


def _names(folder: str) -> str:
    return ", ".join(os.path.basename(path) for path in checkpoint_paths(folder))


def _first_line(message: str) -> str:
    return message.strip().split("\n", 1)[0]


def _steps_and_paths(folder: str) -> list[tuple[int, str]]:
    found = []
    for index in tf.io.gfile.glob(os.path.join(as_pattern(folder), "*.index")):
        step = re.search(r"-(\d+)\.index$", index)
        if step:
            found.append((int(step[1]), index.removesuffix(".index")))
    return sorted(found)


_REASON = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Permission denied|Read-only file system"
)
# TensorFlow's message about a missing file that it has just written itself.
_GONE = re.compile(r"([^\s;]+)(?:; No such file or directory| did not exist| not found)")
_FOLDER = re.compile(r"[^\n]*; Is a directory")
# TensorFlow's names for files that it has not yet renamed.
_UNFINISHED = re.compile(r"\.tmp[0-9a-f]{32}$|\.tempstate\d+$|_temp$")


_RESUMES = "Training will resume from the last complete checkpoint."


@contextlib.contextmanager
def write_errors_explained(folder: str) -> Iterator[None]:
    """Explains why a checkpoint can't be written, and removes its unfinished files."""
    try:
        yield
    except tf.errors.OpError as error:
        kind: type[tf.errors.OpError] = tf.errors.FailedPreconditionError
        gone = _GONE.search(error.message)
        if in_the_way := _FOLDER.search(error.message):
            reason = in_the_way[0]
            advice = (
                "a folder has the name of one of its files. Remove that folder, or give another "
                "model_dir."
            )
        elif gone and gone[1].startswith(folder):
            reason = f"{os.path.basename(gone[1])} is gone"
            advice = (
                "another process trains in this folder, or removes its files. Let one at a time "
                f"use it, or give another model_dir. {_RESUMES}"
            )
        elif refused := _REASON.search(error.message):
            kind, reason = tf.errors.ResourceExhaustedError, refused[0]
            advice = (
                "free space on its disk, or give a model_dir that this user may write to. "
                f"{_RESUMES}"
            )
            with contextlib.suppress(tf.errors.OpError):
                _remove_unfinished(folder)
        else:
            raise
        message = f"A checkpoint can't be written to {folder} ({reason}): {advice}"
        raise kind(None, None, message) from None


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
