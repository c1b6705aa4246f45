"""Writes Transform's output for the taxi and digits models, with numbered rows."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils
from tfx import v1 as tfx

from pipelines.digits.data import write_digits
from pipelines.digits.transform import preprocessing as digits
from pipelines.taxi.transform import preprocessing as taxi
from tests import tfx_testdata

v1 = tf.compat.v1

ROW = "row"
"""The feature that numbers the rows."""

_kinds = tfx.types.standard_artifacts
_DTYPES = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}


@dataclasses.dataclass(frozen=True)
class Source:
    """A pipeline's data.

    Attributes:
        read: Returns the requested number of raw rows, from the first on.
        preprocessing_fn: The pipeline's.
        label: The label in Transform's output.
        dense: Whether all rows have the same number of values of a feature.
    """

    read: Callable[[int], list[tf.train.Example]]
    preprocessing_fn: Callable[[dict[str, Any]], dict[str, tf.Tensor]]
    label: str
    dense: bool


def _taxi_rows(count: int) -> list[tf.train.Example]:
    return _rows(tf.io.gfile.glob(f"{tfx_testdata.RAW_EXAMPLES}/Split-train/*"), "GZIP", count)


def _digits_rows(count: int) -> list[tf.train.Example]:
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder) / "digits")
        return _rows([f"{folder}/digits"], "", count)


def _rows(paths: Sequence[str], compression: str, count: int) -> list[tf.train.Example]:
    records = tf.data.TFRecordDataset(list(paths), compression_type=compression).take(count)
    return [tf.train.Example.FromString(record) for record in records.as_numpy_iterator()]


SOURCES = {
    "taxi": Source(_taxi_rows, taxi.preprocessing_fn, taxi.LABEL, dense=False),
    "digits": Source(_digits_rows, digits.preprocessing_fn, digits.LABEL, dense=True),
}


def prepare(model: str, folder: Path, *, rows: int) -> None:
    """Writes the outputs of ExampleGen, SchemaGen and Transform; `inputs` reads them.

    It runs TensorFlow, so it needs its own process.

    Args:
        model: The source's name.
        folder: The folder to write into.
        rows: Rows to train on; a quarter as many are for evaluation.
    """
    source = SOURCES[model]
    examples = source.read(rows + rows // 4)
    for number, example in enumerate(examples):
        example.features.feature[ROW].int64_list.value[:] = [number]
    spec = _spec(examples, dense=source.dense)
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))

    def preprocessing_fn(features: dict[str, Any]) -> dict[str, tf.Tensor]:
        row = tf.reshape(features.pop(ROW), [-1])
        return {**source.preprocessing_fn(features), ROW: row}

    graph = str(folder / "transform_graph")
    instances = [_instance(example, spec) for example in examples[:rows]]
    with tft_beam.Context(temp_dir=str(folder / "tmp"), force_tf_compat_v1=True):
        transform_fn = (instances, metadata) | tft_beam.AnalyzeDataset(preprocessing_fn)
        _ = transform_fn | tft_beam.WriteTransformFn(graph)
    metadata_io.write_metadata(metadata, f"{graph}/metadata")
    for split, part in {"train": examples[:rows], "eval": examples[rows:]}.items():
        raw = [example.SerializeToString() for example in part]
        _write(folder / "raw_examples" / f"Split-{split}", raw)
        _write(folder / "examples" / f"Split-{split}", _transformed(raw, graph))


def inputs(folder: Path) -> dict[str, list[tfx.dsl.Artifact]]:
    """Returns the trainer's input artifacts, of what `prepare` wrote to a folder."""
    splits = {"split_names": json.dumps(["train", "eval"])}
    return {
        "examples": [artifact(_kinds.Examples, folder / "examples", **splits)],
        "raw_examples": [artifact(_kinds.Examples, folder / "raw_examples", **splits)],
        "transform_graph": [artifact(_kinds.TransformGraph, folder / "transform_graph")],
        "schema": [artifact(_kinds.Schema, folder / "transform_graph" / "metadata")],
    }


def artifact(kind: Any, uri: Path, **properties: Any) -> Any:
    """Returns an artifact of a TFX type."""
    made = kind()
    made.uri = str(uri)
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def _spec(examples: Sequence[tf.train.Example], *, dense: bool) -> dict[str, Any]:
    spec = {}
    for example in examples:
        for name, feature in example.features.feature.items():
            kind = feature.WhichOneof("kind")
            if kind and name not in spec:
                size = len(getattr(feature, kind).value)
                fixed = dense or name == ROW
                spec[name] = (
                    tf.io.FixedLenFeature([size], _DTYPES[kind])
                    if fixed
                    else tf.io.VarLenFeature(_DTYPES[kind])
                )
    return spec


def _instance(example: tf.train.Example, spec: dict[str, Any]) -> dict[str, list[Any]]:
    given = dict(example.features.feature)
    return {name: _values(given.get(name, tf.train.Feature())) for name in spec}


def _values(feature: tf.train.Feature) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _transformed(raw: list[bytes], graph: str) -> list[bytes]:
    output = tft.TFTransformOutput(graph)
    with tf.Graph().as_default(), v1.Session() as session:
        parsed = tf.io.parse_example(tf.constant(raw), output.raw_feature_spec())
        features = output.transform_raw_features(parsed)
        session.run(v1.tables_initializer())
        columns = session.run(features)
    return [
        _example({name: column[row] for name, column in columns.items()}) for row in range(len(raw))
    ]


def _example(values: dict[str, Any]) -> bytes:
    example = tf.train.Example()
    for name, value in values.items():
        feature, flat = example.features.feature[name], value.reshape(-1).tolist()
        if value.dtype.kind == "f":
            feature.float_list.value[:] = flat
        else:
            feature.int64_list.value[:] = flat
    return example.SerializeToString()


def _write(folder: Path, records: Sequence[bytes]) -> None:
    folder.mkdir(parents=True)
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(str(folder / "rows-00000-of-00001.gz"), options) as writer:
        for record in records:
            writer.write(record)
