"""Finds, reads, checks and copies the files of a SavedModel, without loading the model."""

import os
import re
from collections.abc import Collection, Sequence

import tensorflow as tf
from google.protobuf import message, text_format

# TensorFlow's protos are stable; SavedModel's has no alias under `tf`.
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer._support.file_systems import check_can_be_opened, check_is_no_pattern
from tfx_tpu_trainer._support.whole_files import folder_written_whole, is_whole, write_whole
from tfx_tpu_trainer.estimator.extending import all_nodes

BINARY_FILE = "saved_model.pb"
"""The file of a SavedModel, in its binary form."""
TEXT_FILE = "saved_model.pbtxt"

SERVING_FOLDER = "Format-Serving"
"""Where TFX keeps the SavedModel of a Model artifact."""

_FILES = (BINARY_FILE, TEXT_FILE)
# A SavedModel's folders. Written file by file, they exist before its proto does.
_PARTS = ("variables", "assets", "assets.extra")
_SHOWN = 5

_VARIABLE_OPS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
VARIABLES = os.path.join("variables", "variables")
_SHARDS = re.compile(r"\.data-\d{5}-of-(\d{5})$")


def read_saved_model(path: str | bytes | os.PathLike[str]) -> saved_model_pb2.SavedModel:
    """Reads the proto of a SavedModel.

    Args:
        path: Folder with `saved_model.pb` or `saved_model.pbtxt`.

    Returns:
        The proto, with at least one metagraph.

    Raises:
        FileNotFoundError: If the folder does not exist or has no SavedModel.
        ValueError: If the file is not a SavedModel.
    """
    path = os.fsdecode(path)
    is_whole(path, _FILES)
    binary, text = os.path.join(path, BINARY_FILE), os.path.join(path, TEXT_FILE)
    for file in (binary, text):
        # Reading a pipe would wait forever.
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
        # For text with hundreds of nested messages; the binary form has its own limit.
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
    """Finds the metagraph with exactly these tags; `None` if there is none."""
    for meta_graph in saved_model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            return meta_graph
    return None


def find_saved_model(path: str | bytes | os.PathLike[str]) -> str:
    """Finds the SavedModel at a path.

    Examples:
        >>> from tfx_tpu_trainer.serving import find_saved_model
        >>> import tensorflow as tf
        >>> tf.saved_model.save(tf.Module(), "models/taxi/1")
        >>> tf.saved_model.save(tf.Module(), "models/taxi/2")
        >>> find_saved_model("models/taxi")
        'models/taxi/2'

    Args:
        path: A version folder; a folder of versions, as a server watches it, for the newest complete one; or the uri of
            a Model artifact. If the only one is still being written, the call waits for it.

    Returns:
        The folder with `saved_model.pb` or `saved_model.pbtxt`.

    Raises:
        FileNotFoundError: If the folder does not exist or has no SavedModel.
        ValueError: If TensorFlow can't open the path.
    """
    path = os.fsdecode(path)
    check_can_be_opened("path", path)
    candidates = [path, os.path.join(path, SERVING_FOLDER)]
    if tf.io.gfile.isdir(path):
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
        # Compared as numbers, as in a server: 10 is newer than 9.
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
    """Returns whether a folder holds a SavedModel's proto."""
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


def check_variables(path: str, saved_model: saved_model_pb2.SavedModel) -> None:
    """Raises if files of variables are missing, truncated or damaged; only reads their sizes.

    A server starts with this model, but rejects each request.
    """
    if not any(
        node.op in _VARIABLE_OPS
        for meta_graph in saved_model.meta_graphs
        for node in all_nodes(meta_graph.graph_def)
    ):
        return
    prefix = os.path.join(path, VARIABLES)
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise _damaged(path, f"it has no {VARIABLES}.index")
    check_is_no_pattern("path", path)
    try:
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    except Exception as error:  # an OpError or a RuntimeError, depending on the damage
        reason = str(error).strip().splitlines()[0]
        raise _damaged(path, f"{VARIABLES}.index can't be read: {reason}") from None
    shards = tf.io.gfile.glob(f"{prefix}.data-*")
    counts = {int(found[1]) for shard in shards if (found := _SHARDS.search(shard))}
    if counts != {len(shards)}:
        raise _damaged(path, f"only {len(shards)} of its files {VARIABLES}.data-* exist")
    # Strings have no fixed size.
    least = sum(
        dtypes[name].size * tf.TensorShape(shape).num_elements()
        for name, shape in shapes.items()
        if dtypes[name] != tf.string
    )
    there = sum(tf.io.gfile.stat(shard).length for shard in shards)
    if there < least:
        raise _damaged(
            path,
            f"its files {VARIABLES}.data-* hold {there:,} bytes, but its values need {least:,}",
        )


def _damaged(path: str, damage: str) -> ValueError:
    return ValueError(
        f"The SavedModel at {path} is incomplete: {damage}. Copy its folder again, or export the "
        "model again."
    )


def copy_metagraph(
    path: str | bytes | os.PathLike[str], destination: str, tags: str | Sequence[str] = ("serve",)
) -> str:
    """Copies one metagraph of a SavedModel into a separate model.

    Consumers that load a SavedModel without naming tags (`tf.saved_model.load(path)`, a Keras `TFSMLayer`) reject one
    with two metagraphs. They accept the copy. The original is not changed.

    Args:
        path: Folder with `saved_model.pb`; a PushedModel's uri, or a Model's `Format-Serving`.
        destination: The folder to make, which appears complete or not at all.
        tags: All tags of the metagraph; the copy keeps them.

    Returns:
        The destination.

    Raises:
        FileNotFoundError: If the folder does not exist or has no SavedModel.
        ValueError: If no metagraph has exactly these tags (the message lists the existing ones), or the destination
            exists.
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
        for folder in _PARTS:
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
