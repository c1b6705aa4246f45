"""Folders and JSON documents that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def written_whole(uri: str, *, replaceable: Collection[str] = ()) -> Iterator[str]:
    """Yields a temporary folder beside `uri` to write into, and puts it in `uri`'s place at the end.

    If the block raises, the temporary folder is removed and `uri` stays as it was.

    Args:
        uri: the folder to make. It may exist and be empty, as TFX's launcher leaves it.
        replaceable: names of files that may be in `uri` already, from an earlier attempt of the same
            execution, and are replaced.

    Yields:
        The temporary folder's path.

    Raises:
        FileExistsError: `uri` holds something that is not replaceable.
    """
    uri = uri.rstrip("/")
    _check_replaceable(uri, replaceable)
    parent, name = os.path.split(uri)
    # Not `uri` and a suffix: object stores go by prefixes of names.
    temporary = os.path.join(parent, f".tmp-{uuid.uuid4().hex[:8]}-{name}")
    tf.io.gfile.makedirs(temporary)
    try:
        yield temporary
        _move(temporary, uri)
    except BaseException:
        _remove(temporary)
        raise


def _check_replaceable(uri: str, replaceable: Collection[str]) -> None:
    if not tf.io.gfile.exists(uri):
        return
    if not tf.io.gfile.isdir(uri):
        raise FileExistsError(f"{uri} is a file, where a folder is to be written.")
    foreign = sorted(set(tf.io.gfile.listdir(uri)) - set(replaceable))
    if foreign:
        raise FileExistsError(
            f"{uri} already holds {', '.join(foreign[:5])}{' ...' if len(foreign) > 5 else ''}: "
            "give a new folder, or empty this one."
        )


def _move(temporary: str, uri: str) -> None:
    _remove(uri)
    if "://" not in uri:
        tf.io.gfile.rename(temporary, uri)
        return
    # Object stores have no folder to rename, and TensorFlow's ram:// drops the files when asked to
    # (seen with TF 2.16.2), so the files move one by one.
    tf.io.gfile.makedirs(uri)
    for name in tf.io.gfile.listdir(temporary):
        tf.io.gfile.rename(os.path.join(temporary, name), os.path.join(uri, name))
    _remove(temporary)


def _remove(folder: str) -> None:
    # Where folders are only prefixes of names, one is gone with its last file.
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def write_document(path: str, document: Mapping[str, Any]) -> None:
    """Writes a document, its folder too where it is missing.

    Args:
        path: where it goes; any path tf.io.gfile knows.
        document: JSON values, the format's "version" among them.
    """
    temporary = f"{path}.tmp-{uuid.uuid4().hex[:8]}"
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    tf.io.gfile.rename(temporary, path, overwrite=True)


def parse_document(text: str, *, newest: int) -> dict[str, Any]:
    """Reads what `write_document` wrote.

    Args:
        text: what the file holds.
        newest: the newest version of the format that the caller can read.

    Returns:
        The document.

    Raises:
        ValueError: it is no JSON, or of a newer version.
        KeyError: it has no version.
    """
    document = json.loads(text)
    if document["version"] > newest:
        raise ValueError(
            f"its version is {document['version']} and this package reads up to {newest}: "
            "upgrade tfx_tpu_trainer"
        )
    return document
