"""A copy of a SavedModel that holds one metagraph only, for consumers that can't name tags."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import folder_written_whole, write_whole
from tfx_tpu_trainer.serving._saved_model_file import BINARY_FILE, meta_graph_with, read_saved_model

_FOLDERS = ("variables", "assets", "assets.extra")


def copy_metagraph(
    path: str | bytes | os.PathLike[str], destination: str, tags: str | Sequence[str] = ("serve",)
) -> str:
    """Copies one metagraph of a SavedModel into a separate model.

    Consumers that load a SavedModel without naming tags (`tf.saved_model.load(path)`, a Keras `TFSMLayer`) refuse one
    with two metagraphs. They accept such a copy. The original is not changed.

    Args:
        path: Folder with `saved_model.pb`; a PushedModel's uri, or a Model's `Format-Serving`.
        destination: The folder to make. It appears complete or not at all.
        tags: All tags of the metagraph; the copy keeps them.

    Returns:
        The destination.

    Raises:
        FileNotFoundError: No such folder, or no SavedModel in it.
        ValueError: No metagraph has just these tags (those that are there are listed), or the
            destination exists.
    """
    path = os.fsdecode(path)
    wanted = [tags] if isinstance(tags, str) else list(tags)
    saved_model = read_saved_model(path)
    meta_graph = meta_graph_with(saved_model, wanted)
    if meta_graph is None:
        there = " and ".join(str(list(m.meta_info_def.tags)) for m in saved_model.meta_graphs)
        raise ValueError(
            f"The SavedModel at {path} has no metagraph with the tags {wanted}: it has {there}. "
            "Give all the tags of one of them."
        )
    if tf.io.gfile.exists(destination):
        raise ValueError(f"{destination} already exists: give a new folder.")
    kept = tf.compat.v1.MetaGraphDef()
    kept.CopyFrom(meta_graph)
    del saved_model.meta_graphs[:]
    saved_model.meta_graphs.append(kept)

    with folder_written_whole(os.path.normpath(destination), last=[BINARY_FILE]) as temporary:
        for folder in _FOLDERS:
            _copy_folder(os.path.join(path, folder), os.path.join(temporary, folder))
        content = saved_model.SerializeToString(deterministic=True)
        write_whole(os.path.join(temporary, BINARY_FILE), content)
    return destination


def _copy_folder(source: str, destination: str) -> None:
    if not tf.io.gfile.isdir(source):
        return
    for folder, _, files in tf.io.gfile.walk(source):
        target = os.path.normpath(os.path.join(destination, os.path.relpath(folder, source)))
        tf.io.gfile.makedirs(target)
        for file in files:
            tf.io.gfile.copy(os.path.join(folder, file), os.path.join(target, file))
