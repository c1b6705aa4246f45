"""Makes small Transform outputs with Transform itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils


def raw_metadata() -> tft.DatasetMetadata:
    """The raw schema, as SchemaGen infers it: of some features it knows that they have one value."""
    schema = schema_utils.schema_from_feature_spec(RAW_SPEC)
    for feature in schema.feature:
        if feature.name in SINGLE_VALUED:
            feature.value_count.min = feature.value_count.max = 1
    return dataset_metadata.DatasetMetadata(schema)


# The Transform output that the tfx wheel carries is one of tf1, and other tests read that in `make test`.
@pytest.fixture(scope="session", params=[pytest.param("tf1", marks=pytest.mark.sweep), "tf2"])
def transform_graph(request, tmp_path_factory) -> str:
    """A folder of Transform for `preprocessing_fn`, once for each format of its graph."""
    folder = tmp_path_factory.mktemp(f"transform_{request.param}")
    temporary = str(folder / "tmp")
    with tft_beam.Context(temp_dir=temporary, force_tf_compat_v1=request.param == "tf1"):
        transform_fn = (instances(ROWS), raw_metadata()) | tft_beam.AnalyzeDataset(preprocessing_fn)
        transform_fn | tft_beam.WriteTransformFn(str(folder / "graph"))
    metadata_io.write_metadata(raw_metadata(), str(folder / "graph" / "metadata"))
    return str(folder / "graph")


LABEL = "big_tip_xf"
MISSING_WORD = "missing"

# What has a fixed length is required; the rest may be missing from a row.
RAW_SPEC = {
    "miles": tf.io.FixedLenFeature([1], tf.float32),
    "fare": tf.io.FixedLenFeature([1], tf.float32),
    "tips": tf.io.FixedLenFeature([1], tf.float32),
    "company": tf.io.FixedLenFeature([1], tf.string),
    "tags": tf.io.VarLenFeature(tf.string),
    "stops": tf.io.VarLenFeature(tf.float32),
    "payment": tf.io.VarLenFeature(tf.string),
    "hour": tf.io.VarLenFeature(tf.int64),
    "unused": tf.io.VarLenFeature(tf.int64),
}
# According to the schema, a row has at most one value of these.
SINGLE_VALUED = ("payment", "hour")

ROWS: list[dict[str, list[Any]]] = [
    {
        "miles": [1.0],
        "fare": [10.0],
        "tips": [3.0],
        "company": [b"a"],
        "tags": [b"x", b"y"],
        "stops": [1.0, 2.5],
        "payment": [b"cash"],
        "hour": [7],
    },
    {
        "miles": [3.0],
        "fare": [20.0],
        "tips": [0.0],
        "company": [b"b"],
        "tags": [],
        "stops": [],
        "payment": [b"card"],
        "hour": [],
    },
    {
        "miles": [5.0],
        "fare": [5.0],
        "tips": [2.0],
        "company": [b"a"],
        "tags": [b"y"],
        "stops": [4.0],
        "payment": [],
        "hour": [23],
    },
]


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, Any]:
    payment = tft.sparse_tensor_to_dense_with_shape(inputs["payment"], [None, 1], MISSING_WORD)
    hour = tft.sparse_tensor_to_dense_with_shape(inputs["hour"], [None, 1], -1)
    return {
        "miles_xf": tft.scale_to_z_score(inputs["miles"]),
        "fare_xf": inputs["fare"] / 10.0,
        "company_xf": tft.compute_and_apply_vocabulary(
            inputs["company"], vocab_filename="company", num_oov_buckets=1
        ),
        "tags_xf": tft.compute_and_apply_vocabulary(inputs["tags"], vocab_filename="tags"),
        "stops_xf": tf.reshape(tf.sparse.reduce_sum(inputs["stops"], axis=1), [-1, 1]),
        "payment_xf": tft.compute_and_apply_vocabulary(
            payment, vocab_filename="payment", num_oov_buckets=1
        ),
        "hour_xf": hour + 1,
        # The fare is needed for a feature too, the tips for the label only.
        LABEL: tf.cast(inputs["tips"] > 0.2 * inputs["fare"], tf.int64),
    }


def instances(rows: Sequence[dict[str, list[Any]]]) -> list[dict[str, list[Any]]]:
    """Rows in the form in which Transform takes them: with an entry for every feature."""
    return [{name: row.get(name, []) for name in RAW_SPEC} for row in rows]


def serialized(row: dict[str, list[Any]], without: Sequence[str] = ()) -> bytes:
    """A row as a tf.Example; a feature without values is left out, as ExampleGen leaves it out."""
    example = tf.train.Example()
    for name, values in row.items():
        if name in without or not values:
            continue
        feature, dtype = example.features.feature[name], RAW_SPEC[name].dtype
        kind = {tf.string: "bytes_list", tf.float32: "float_list", tf.int64: "int64_list"}[dtype]
        getattr(feature, kind).value.extend(values)
    return example.SerializeToString()


def random_rows(count: int, *, seed: int = 11) -> list[dict[str, list[Any]]]:
    """Rows with missing values and with words that `ROWS` has not."""
    random = np.random.RandomState(seed)
    words = {"company": [b"a", b"b", b"never seen"], "payment": [b"cash", b"card", b"", b"crypto"]}

    def numbers(least: int, most: int, scale: float) -> list[float]:
        count = random.randint(least, most + 1)
        return [float(np.float32(each)) for each in random.gamma(2.0, scale, count)]

    def some(values: Sequence[Any], least: int, most: int) -> list[Any]:
        return [
            values[index]
            for index in random.randint(len(values), size=random.randint(least, most + 1))
        ]

    return [
        {
            "miles": numbers(1, 1, 3.0),
            "fare": numbers(1, 1, 8.0),
            "tips": numbers(1, 1, 1.0),
            "company": some(words["company"], 1, 1),
            "tags": some([b"x", b"y", b"z", "\u00fc \u4e2d".encode()], 0, 3),
            "stops": numbers(0, 4, 1.0),
            "payment": some([word for word in words["payment"] if word], 0, 1),
            "hour": some(range(24), 0, 1),
        }
        for _ in range(count)
    ]
