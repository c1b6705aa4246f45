"""Small Transform outputs, made by Transform itself."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam
from tensorflow_transform.tf_metadata import dataset_metadata, metadata_io, schema_utils

# Every raw feature is required: such a schema comes from data without missing values.
RAW_SPEC = {
    "miles": tf.io.FixedLenFeature([1], tf.float32),
    "fare": tf.io.FixedLenFeature([1], tf.float32),
    "tips": tf.io.FixedLenFeature([1], tf.float32),
    "company": tf.io.FixedLenFeature([1], tf.string),
    "tags": tf.io.VarLenFeature(tf.string),
}
ROWS = [
    {"miles": [1.0], "fare": [10.0], "tips": [3.0], "company": [b"a"], "tags": [b"x", b"y"]},
    {"miles": [3.0], "fare": [20.0], "tips": [0.0], "company": [b"b"], "tags": []},
    {"miles": [5.0], "fare": [5.0], "tips": [2.0], "company": [b"a"], "tags": [b"y"]},
]


def preprocessing_fn(inputs):
    return {
        "miles_xf": tft.scale_to_z_score(inputs["miles"]),
        "fare_xf": inputs["fare"] / 10.0,
        "company_xf": tft.compute_and_apply_vocabulary(
            inputs["company"], vocab_filename="company", num_oov_buckets=1
        ),
        "tags_xf": tft.compute_and_apply_vocabulary(inputs["tags"], vocab_filename="tags"),
        # The fare is needed for a feature too, the tips for the label only.
        "big_tip_xf": tf.cast(inputs["tips"] > 0.2 * inputs["fare"], tf.int64),
    }


@pytest.fixture(scope="session", params=["tf1", "tf2"])
def transform_graph(request, tmp_path_factory) -> str:
    """A folder of Transform for `preprocessing_fn`, once for each format of its graph."""
    folder = tmp_path_factory.mktemp(f"transform_{request.param}")
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(RAW_SPEC))
    temporary = str(folder / "tmp")
    with tft_beam.Context(temp_dir=temporary, force_tf_compat_v1=request.param == "tf1"):
        transform_fn = (ROWS, metadata) | tft_beam.AnalyzeDataset(preprocessing_fn)
        transform_fn | tft_beam.WriteTransformFn(str(folder / "graph"))
    metadata_io.write_metadata(metadata, str(folder / "graph" / "metadata"))
    return str(folder / "graph")
