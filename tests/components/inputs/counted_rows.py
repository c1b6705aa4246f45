"""Writes files of numbered rows, as Transform writes them."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Collection
from typing import Any

import tensorflow as tf
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils
from tfx_bsl.public import tfxio

from tfx_tpu_trainer.components.inputs import TransformedInput

LABEL = "odd"
NUMBERS = ("id", LABEL)
"""The names of what is there where a row is known by its number."""

SPEC = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "square": tf.io.FixedLenFeature([], tf.float32),
    "digits": tf.io.FixedLenFeature([2, 2], tf.int64),
    "word": tf.io.FixedLenFeature([1], tf.string),
    "tags": tf.io.VarLenFeature(tf.int64),
    "names": tf.io.VarLenFeature(tf.string),
    "never": tf.io.VarLenFeature(tf.float32),
    "path": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
    "steps": tf.io.RaggedFeature(tf.string, value_key="steps", row_splits_dtype=tf.int64),
    LABEL: tf.io.FixedLenFeature([1], tf.int64),
}


def values(number: int) -> dict[str, list[Any]]:
    """Returns a row's values by feature."""
    return {
        "id": [number],
        "square": [float(number * number)],
        "digits": [number // 1000, number // 100 % 10, number // 10 % 10, number % 10],
        "word": [b"word \xff\x00 %d" % (number % 5)],
        "tags": list(range(number % 4)),
        "names": [b"name %d" % each for each in range(number % 3)],
        "never": [],
        "path": list(range(number % 5)),
        "steps": [b"step %d" % each for each in range(number % 2)],
        LABEL: [number % 2],
    }


def write_rows(path: pathlib.Path, numbers: range) -> None:
    """Writes a file of rows; a name that ends in .gz is compressed."""
    options = tf.io.TFRecordOptions("GZIP" if path.suffix == ".gz" else "")
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for number in numbers:
            writer.write(_serialized(number))


@functools.cache
def _serialized(number: int) -> bytes:
    kinds = {tf.string: "bytes_list", tf.float32: "float_list", tf.int64: "int64_list"}
    example = tf.train.Example()
    for name, of_row in values(number).items():
        feature = example.features.feature[name]
        getattr(feature, kinds[SPEC[name].dtype]).value.extend(of_row)
    return example.SerializeToString()


def counted_input(
    folder: pathlib.Path,
    rows: int = 24,
    *,
    files: int = 3,
    suffix: str = "",
    names: Collection[str] = tuple(SPEC),
    **arguments: Any,
) -> TransformedInput:
    """Returns an input of rows that are dealt to files; it writes them unless they are there.

    It has the features of some names: each costs a graph more ops.
    """
    schema = schema_utils.schema_from_feature_spec({name: SPEC[name] for name in names})
    metadata = dataset_metadata.DatasetMetadata(schema)
    if not (folder / "graph").exists():
        metadata_io.write_metadata(metadata, str(folder / "graph" / "transformed_metadata"))
        for number in range(files):
            write_rows(folder / f"rows-{number}{suffix}", range(number, rows, files))
    given = {
        "transform_graph_path": str(folder / "graph"),
        "file_patterns": [str(folder / "rows-*")],
        "dataset_factory": _open,
        "label_key": LABEL,
        "shuffle_seed": 3,
    }
    return TransformedInput(**{**given, **arguments})


def _open(files: Any, options: Any, schema: Any) -> tf.data.Dataset:
    reader = tfxio.TFExampleRecord(file_pattern=files, schema=schema, telemetry_descriptors=["t"])
    return reader.TensorFlowDataset(options)
