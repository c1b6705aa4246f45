"""The rows of a TFRecord file of tf.Examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf
from google.protobuf.message import DecodeError

from tfx_tpu_trainer.workbench.new.errors import ScaffoldError


def rows(path: Path) -> Iterator[Mapping[str, str | None]]:
    """The rows of a TFRecord file."""
    compression = "GZIP" if path.name.endswith(".gz") else ""
    records = tf.data.TFRecordDataset([str(path)], compression_type=compression)
    try:
        for number, record in enumerate(records.as_numpy_iterator(), start=1):
            yield {name: _text(feature) for name, feature in _features(record, path, number)}
    except tf.errors.DataLossError:
        raise ScaffoldError(
            f"{path} is not a TFRecord file, or is damaged: give one of tf.Examples, or a CSV file"
        ) from None


def _features(record: bytes, path: Path, number: int) -> list[tuple[str, tf.train.Feature]]:
    try:
        example = tf.train.Example.FromString(record)
    except DecodeError:
        example = tf.train.Example()
    if record and not example.features.feature:
        raise ScaffoldError(
            f"{path}: record {number:,} is not a tf.Example; write a tf.train.Example for each row"
        )
    return list(example.features.feature.items())


def _text(feature: tf.train.Feature) -> str | None:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else ()
    if not values:
        return None
    # What is no text is shown, and still counted as one value.
    return (
        values[0].decode("utf-8", errors="backslashreplace")
        if kind == "bytes_list"
        else repr(values[0])
    )
