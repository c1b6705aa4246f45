"""What a model is fed, without data."""

from __future__ import annotations

import json
import shutil

import pytest
import tensorflow as tf

from tests import tfx_testdata
from tfx_tpu_trainer.preflight.feature_spec import FeatureSpec

VALUES = {
    "features": {
        "pixels": {"dtype": "float32", "shape": [8, 8]},
        "name": {"dtype": "string", "shape": []},
        "digit": {"dtype": "int64", "shape": [1]},
    },
    "label_key": "digit",
    "vocabulary_sizes": {"company": 37},
}


def _write(folder, values) -> str:
    path = folder / "spec.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    return str(path)


def test_it_reads_what_it_writes(tmp_path):
    spec = FeatureSpec.read(_write(tmp_path, VALUES))
    assert spec.to_json() == VALUES
    assert spec.features["pixels"] == tf.TensorSpec([8, 8], tf.float32)


def test_batches_have_fixed_shapes_and_the_label_apart():
    features, label = FeatureSpec.from_json(VALUES).input_fn()({"batch_size": 4}).element_spec
    assert features == {
        "pixels": tf.TensorSpec([4, 8, 8], tf.float32),
        "name": tf.TensorSpec([4], tf.string),
    }
    assert label == tf.TensorSpec([4, 1], tf.int64)


def test_without_a_label_there_are_features_only():
    spec = FeatureSpec.from_json({"features": {"x": {"dtype": "bfloat16", "shape": [3]}}})
    assert spec.input_fn()({"batch_size": 2}).element_spec == {
        "x": tf.TensorSpec([2, 3], tf.bfloat16)
    }


def test_the_caller_s_label_wins(tmp_path):
    assert FeatureSpec.read(_write(tmp_path, VALUES), label_key="name").label_key == "name"


def test_what_transform_puts_out_is_read():
    spec = FeatureSpec.of_transform(tfx_testdata.TRANSFORM_GRAPH, label_key=tfx_testdata.LABEL)
    assert spec.features["fare_xf"].dtype == tf.float32
    assert spec.vocabulary_sizes and all(size > 0 for size in spec.vocabulary_sizes.values())
    assert FeatureSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("text", "cannot be read: Expecting value"),
        ([], "give an object such as"),
        ({}, "give an object such as"),
        ({"features": {}}, "at least one feature"),
        ({**VALUES, "label": "digit"}, "unknown key 'label': there are features, label_key"),
        (
            {**VALUES, "label_key": "digits"},
            "label_key='digits' is not among the features: give one",
        ),
        (
            {"features": {"x": {"dtype": "float32"}}},
            "'x' is {'dtype': 'float32'}: give its dtype and",
        ),
        (
            {"features": {"x": {"dtype": "real", "shape": []}}},
            "dtype 'real': give one of TensorFlow's",
        ),
        ({"features": {"x": {"dtype": "int32", "shape": [None]}}}, r"shape \[None\]: give a list"),
        ({**VALUES, "vocabulary_sizes": {"company": "37"}}, "give the number of entries by name"),
    ],
)
def test_bad_input_is_one_line_that_names_the_file(tmp_path, values, message):
    with pytest.raises(ValueError, match=message) as caught:
        FeatureSpec.read(_write(tmp_path, values))
    assert "spec.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_or_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.json cannot be read"):
        FeatureSpec.read(str(tmp_path / "missing.json"))
    with pytest.raises(ValueError, match="is no output of Transform: give the folder"):
        FeatureSpec.of_transform(str(tmp_path))


def test_a_sparse_feature_is_refused(tmp_path):
    graph = tmp_path / "transform_graph"
    shutil.copytree(tfx_testdata.TRANSFORM_GRAPH, graph)
    schema = graph / "transformed_metadata" / "schema.pbtxt"
    text = schema.read_text(encoding="utf-8")
    sparse = 'feature {\n  name: "words"\n  type: BYTES\n}\n'
    schema.write_text(text + sparse, encoding="utf-8")
    with pytest.raises(ValueError, match="'words' out as a VarLenFeature, and a TPU takes"):
        FeatureSpec.of_transform(str(graph))
