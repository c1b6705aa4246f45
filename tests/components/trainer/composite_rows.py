"""Makes rows with ragged and sparse features, raw and transformed, and a model for them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils
from tfx import v1 as tfx

from tests.components.trainer.execution import Execution, artifact_of, examples_of
from tfx_tpu_trainer.components.trainer.rows import values_by_row
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

LABEL = "label"
ROWS = {"train": 40, "eval": 13}

# The first feature by name is ragged, and its shape was once read.
RAW_SPEC = {
    "a_words": tf.io.RaggedFeature(tf.string, value_key="a_words", row_splits_dtype=tf.int64),
    "counts": tf.io.RaggedFeature(tf.int64, value_key="counts", row_splits_dtype=tf.int64),
    "tags": tf.io.VarLenFeature(tf.string),
    "x": tf.io.FixedLenFeature([1], tf.float32),
    LABEL: tf.io.FixedLenFeature([1], tf.int64),
}
_LISTS = {tf.string: "bytes_list", tf.float32: "float_list", tf.int64: "int64_list"}


def raw_row(number: int) -> dict[str, list[Any]]:
    """Returns the values of a row; of what has any number of values, some have none."""
    return {
        "a_words": [b"w%d" % each for each in range(number % 3)],
        "counts": list(range(number % 4)),
        "tags": [b"t%d" % (number % 5)] if number % 5 else [],
        "x": [number / 10],
        LABEL: [number % 2],
    }


def preprocessing_fn(inputs: Mapping[str, Any]) -> dict[str, Any]:
    words = tft.compute_and_apply_vocabulary(
        inputs["a_words"], vocab_filename="words", num_oov_buckets=1
    )
    tags = tft.compute_and_apply_vocabulary(
        inputs["tags"], vocab_filename="tags", num_oov_buckets=1
    )
    return {
        "a_ids": words,
        "counts_xf": inputs["counts"] + 1,
        "tag_ids": tags,
        "x_xf": inputs["x"],
        LABEL: inputs[LABEL],
    }


def write(folder: pathlib.Path) -> None:
    """Writes Transform's graph, and both kinds of examples."""
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(RAW_SPEC))
    rows = [raw_row(number) for number in range(ROWS["train"])]
    with tft_beam.Context(temp_dir=str(folder / "tmp")):
        transform_fn = (rows, metadata) | tft_beam.AnalyzeDataset(preprocessing_fn)
        transform_fn | tft_beam.WriteTransformFn(str(folder / "graph"))
    metadata_io.write_metadata(metadata, str(folder / "graph" / "metadata"))
    raw = {split: raw_records(split) for split in ROWS}
    examples_of(folder / "raw", **raw)
    examples_of(
        folder / "transformed", **{split: _transformed(folder, raw[split]) for split in raw}
    )


def raw_records(split: str) -> list[bytes]:
    """Returns the raw rows of a split, serialized."""
    return [_serialized(raw_row(number), RAW_SPEC) for number in range(ROWS[split])]


def _transformed(folder: pathlib.Path, examples: list[bytes]) -> list[bytes]:
    output = tft.TFTransformOutput(str(folder / "graph"))
    with tf.Graph().as_default():
        features = output.transform_raw_features(tf.io.parse_example(examples, RAW_SPEC))
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            columns = {k: values_by_row(v) for k, v in session.run(dict(features)).items()}
    rows = [{k: column[i].tolist() for k, column in columns.items()} for i in range(len(examples))]
    return [_serialized(row, output.transformed_feature_spec()) for row in rows]


def _serialized(row: Mapping[str, list[Any]], spec: Mapping[str, Any]) -> bytes:
    example = tf.train.Example()
    for name, values in row.items():
        # Transform calls the values of a ragged feature otherwise than the feature.
        key = getattr(spec[name], "value_key", None) or name
        if values:
            getattr(example.features.feature[key], _LISTS[spec[name].dtype]).value.extend(values)
    return example.SerializeToString()


def execution(data: pathlib.Path, folder: pathlib.Path, **properties: Any) -> Execution:
    """Returns an execution of a TpuTrainer of this module's model on rows that `write` has written."""
    made = Execution.of_trainer(
        folder, module=__name__, label_key=LABEL, train_batch_size=8, **properties
    )
    kinds, splits = tfx.types.standard_artifacts, json.dumps(list(ROWS))
    made.inputs = {
        "examples": [artifact_of(kinds.Examples, data / "transformed", split_names=splits)],
        "raw_examples": [artifact_of(kinds.Examples, data / "raw", split_names=splits)],
        "transform_graph": [artifact_of(kinds.TransformGraph, data / "graph")],
        "schema": [artifact_of(kinds.Schema, data / "graph" / "metadata")],
    }
    return made


def model_fn(features, labels, mode, params):
    table = v1.get_variable("table", [20, 4])
    found = [
        tf.nn.safe_embedding_lookup_sparse(
            table, ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids, combiner="sum"
        )
        for ids in (features["a_ids"], features["tag_ids"])
    ]
    counts = tf.cast(tf.reduce_sum(features["counts_xf"], axis=1, keepdims=True), tf.float32)
    logits = v1.layers.dense(tf.concat([*found, counts, features["x_xf"]], axis=1), 1)
    if mode == "infer":
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
    loss = tf.reduce_mean(tf.square(logits - tf.cast(labels, tf.float32)))
    train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        eval_metrics=(lambda x: {"mean_x": v1.metrics.mean(x)}, [features["x_xf"]]),
    )
