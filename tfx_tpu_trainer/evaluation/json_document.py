"""A JSON file with the version of its format: written whole or not at all, read by who knows it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


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
