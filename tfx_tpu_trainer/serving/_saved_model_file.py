"""A SavedModel's file: found below a path that a user names, and read without loading the model."""

from __future__ import annotations

import os
from collections.abc import Collection

import tensorflow as tf
from google.protobuf import message, text_format

# TensorFlow's protos are stable files of theirs; SavedModel's has no alias under `tf`.
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer._support.file_systems import check_can_be_opened
from tfx_tpu_trainer._support.whole_files import is_whole

BINARY_FILE = "saved_model.pb"
"""The file of a SavedModel, in its binary form."""
TEXT_FILE = "saved_model.pbtxt"

SERVING_FOLDER = "Format-Serving"
"""Where TFX keeps the SavedModel of a Model artifact."""

_FILES = (BINARY_FILE, TEXT_FILE)
# What a SavedModel's folder has before it has one of its files, where it is written file by file.
_PARTS = ("variables", "assets", "assets.extra")
_SHOWN = 5


def read_saved_model(path: str | bytes | os.PathLike[str]) -> saved_model_pb2.SavedModel:
    """Reads the proto of a SavedModel.

    Args:
        path: Folder with `saved_model.pb` or `saved_model.pbtxt`.

    Returns:
        The proto, with one metagraph at least.

    Raises:
        FileNotFoundError: No such folder, or no SavedModel in it.
        ValueError: The file is not a SavedModel.
    """
    path = os.fsdecode(path)
    is_whole(path, _FILES)
    binary, text = os.path.join(path, BINARY_FILE), os.path.join(path, TEXT_FILE)
    for file in (binary, text):
        # A pipe would be waited at forever.
        if os.path.exists(file) and not os.path.isfile(file):
            raise ValueError(
                f"The SavedModel at {path} can't be read: its {os.path.basename(file)} is not a "
                "file. Copy its folder again, or export the model again."
            )
    saved_model = saved_model_pb2.SavedModel()
    try:
        if tf.io.gfile.exists(binary):
            with tf.io.gfile.GFile(binary, "rb") as file:
                saved_model.ParseFromString(file.read())
        elif tf.io.gfile.exists(text):
            with tf.io.gfile.GFile(text, "rb") as file:
                text_format.Parse(file.read().decode(), saved_model)
        else:
            raise FileNotFoundError(_not_found(path))
    except (
        message.DecodeError,
        text_format.ParseError,
        UnicodeDecodeError,
        # Of text whose messages are nested hundreds deep; the binary form has a limit of its own.
        RecursionError,
    ) as error:
        raise ValueError(
            f"The SavedModel at {path} can't be read: {str(error).rstrip('.')}. Copy its folder "
            "again, or export the model again."
        ) from error
    if not saved_model.meta_graphs:
        raise ValueError(
            f"The SavedModel at {path} is empty: it contains no metagraph. Export the model again."
        )
    return saved_model


def meta_graph_with(
    saved_model: saved_model_pb2.SavedModel, tags: Collection[str]
) -> tf.compat.v1.MetaGraphDef | None:
    """Finds the metagraph that has just these tags, `None` if there is none."""
    for meta_graph in saved_model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            return meta_graph
    return None


def find_saved_model(path: str | bytes | os.PathLike[str]) -> str:
    """Finds the SavedModel that a user means by a path.

    Examples:
        >>> from tfx_tpu_trainer.serving import find_saved_model
        >>> import tensorflow as tf
        >>> tf.saved_model.save(tf.Module(), "models/taxi/1")
        >>> tf.saved_model.save(tf.Module(), "models/taxi/2")
        >>> find_saved_model("models/taxi")
        'models/taxi/2'

    Args:
        path: A version folder; the folder of the versions, as a server watches it: then the newest that is whole; or
            the uri of a Model artifact. If the only one is still being written, it is waited for.

    Returns:
        The folder with `saved_model.pb` or `saved_model.pbtxt`.

    Raises:
        FileNotFoundError: No such folder, or no SavedModel there.
        ValueError: TensorFlow opens no such path.
    """
    path = os.fsdecode(path)
    check_can_be_opened("path", path)
    candidates = [path, os.path.join(path, SERVING_FOLDER)]
    if tf.io.gfile.isdir(path):
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
        versions = sorted((name for name in names if name.isdecimal()), key=int, reverse=True)
        candidates += [os.path.join(path, version) for version in versions]
    for candidate in candidates:
        if holds_saved_model(candidate):
            return candidate
    for candidate in candidates:
        is_begun = any(tf.io.gfile.isdir(os.path.join(candidate, part)) for part in _PARTS)
        if is_begun and is_whole(candidate, _FILES):
            return candidate
    raise FileNotFoundError(_not_found(path))


def holds_saved_model(path: str) -> bool:
    """Whether a folder holds the file of a SavedModel."""
    return any(tf.io.gfile.exists(os.path.join(path, name)) for name in _FILES)


def _not_found(path: str) -> str:
    if not path:
        return f"The path is empty: give the folder that contains {BINARY_FILE}."
    if not tf.io.gfile.exists(path):
        return f"The folder {path} does not exist: give the folder that contains {BINARY_FILE}."
    if not tf.io.gfile.isdir(path):
        return f"{path} is a file: give the folder that contains {BINARY_FILE}."
    inside = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path))
    deeper = [name for name in inside if holds_saved_model(os.path.join(path, name))]
    if deeper:
        return (
            f"{path} contains no {BINARY_FILE}, but {os.path.join(path, deeper[-1])} does: give "
            "that folder."
        )
    more = f" and {len(inside) - _SHOWN} more" if len(inside) > _SHOWN else ""
    listed = ", ".join(inside[:_SHOWN]) or "no files"
    return f"{path} contains no {BINARY_FILE}; it has {listed}{more}. Give the folder that contains it."
