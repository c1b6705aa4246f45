"""Tests a preflight model's input without data."""

from __future__ import annotations

import json
import shutil

import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.bad_input import case, row
from tests.components.trainer import keras_model
from tfx_tpu_trainer.components.user_module._module import check_module
from tfx_tpu_trainer.components.user_module._preflight_model import FeatureSpec, model_of_module
from tfx_tpu_trainer.estimator import ModeKeys

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


def refusal(given, values, *says):
    content = values if isinstance(values, bytes) else json.dumps(values).encode()
    return case(
        "preflight",
        f"a feature spec {given}",
        "The feature spec ",
        "/spec.json",
        *says,
        values=content,
    )


def feature(dtype, shape):
    return {"features": {"x": {"dtype": dtype, "shape": shape}}}


@pytest.mark.parametrize(
    "content",
    [
        refusal("that is a list", [], ": give an object such as {"),
        refusal(
            "without features", {"features": {}}, "features={} is empty: a model needs at least one"
        ),
        refusal(
            "with an unknown key",
            {**VALUES, "labels": 1},
            "unknown key 'labels': use any of features",
        ),
        refusal(
            "with another label",
            {**VALUES, "label_key": "z"},
            "label_key='z' is not among the feat",
        ),
        refusal(
            "whose label is a list",
            {**VALUES, "label_key": ["z"]},
            "label_key=['z']: give the name",
        ),
        refusal(
            "without a shape",
            {"features": {"x": {"dtype": "float32"}}},
            "feature 'x' is {'dtype': 'float32'}: give its dtype and its shape",
        ),
        refusal(
            "of the dtype `real`", feature("real", []), "has the dtype 'real': give one of TensorF"
        ),
        refusal(
            "of the dtype 1", feature(1, []), "has the dtype 1: give one of TensorFlow's, such as"
        ),
        refusal(
            "of the dtype `resource`", feature("resource", []), "has the dtype 'resource': give one"
        ),
        refusal(
            "of an open shape", feature("int32", [None]), "has the shape [None]: give a list of pos"
        ),
        refusal(
            "of 2^63 values",
            feature("int32", [2**63]),
            "a row can't have more than 2,147,483,647 values; give the shape without the batch axis",
        ),
        refusal(
            "with a vocabulary size that is text",
            {**VALUES, "vocabulary_sizes": {"company": "37"}},
            "give the number of entries by name",
        ),
        refusal(
            "that is empty", b"", " can't be read (Expecting value", "): give a file with JSON such"
        ),
        refusal(
            "that is not UTF-8",
            b"\xff",
            " can't be read ('utf-8' codec",
            "): give a file with JSON",
        ),
        refusal(
            "nested 100,000 deep",
            b"[" * 100_000,
            " can't be read (maximum recursion",
            "): give a f",
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_file(tmp_path, content, refused):
    (tmp_path / "spec.json").write_bytes(content)
    with refused(ValueError):
        FeatureSpec.read(str(tmp_path / "spec.json"))


@row(
    "preflight",
    "a feature spec that is not there",
    "missing.json can't be read (",
    "): give a file",
)
def test_a_file_that_is_not_there(tmp_path, refused):
    with refused(ValueError):
        FeatureSpec.read(str(tmp_path / "missing.json"))


@pytest.mark.parametrize(
    "schema",
    [
        case(
            "preflight",
            f"a Transform output {given}",
            "is not an output of Transform: give the folder of its transform_graph artifact (",
            says,
            values=(schema,),
        )
        for given, schema, says in (
            ("that is an empty folder", None, "Schema file "),
            ("whose schema is not a text proto", b"nope {", 'has no field named "nope"'),
            ("whose schema is not UTF-8", b"\xff", "'utf-8' codec can't decode"),
        )
    ],
)
def test_a_folder_of_something_else(tmp_path, schema, refused):
    if schema is not None:
        (tmp_path / "transformed_metadata").mkdir()
        (tmp_path / "transformed_metadata" / "schema.pbtxt").write_bytes(schema)
    with refused(ValueError):
        FeatureSpec.of_transform(str(tmp_path))


@row(
    "preflight",
    "a feature that Transform returns out sparse",
    "Transform returns the feature 'words' as a VarLenFeature, but a TPU takes only tensors of a "
    "fixed shape:",
    "make it dense in the preprocessing_fn",
)
def test_a_sparse_feature_is_refused(tmp_path, refused):
    graph = tmp_path / "transform_graph"
    shutil.copytree(tfx_testdata.TRANSFORM_GRAPH, graph)
    schema = graph / "transformed_metadata" / "schema.pbtxt"
    text = schema.read_text(encoding="utf-8")
    sparse = 'feature {\n  name: "words"\n  type: BYTES\n}\n'
    schema.write_text(text + sparse, encoding="utf-8")
    with refused(ValueError):
        FeatureSpec.of_transform(str(graph))


@pytest.mark.parametrize(
    ("kind", "label_key", "names"),
    [
        ("functional", tfx_testdata.LABEL, {"tips_xf", "classes"}),
        ("two outputs", None, {"tips_xf", "trip_seconds_xf"}),
    ],
)
def test_a_build_model_is_fed_and_predicts(kind, label_key, names):
    spec = FeatureSpec.of_transform(tfx_testdata.TRANSFORM_GRAPH, label_key=label_key)
    model = model_of_module(check_module(keras_model), spec=spec, params={"kind": kind})
    made = {}
    for mode in (ModeKeys.EVAL, ModeKeys.PREDICT):
        with tf.Graph().as_default():
            fed = model.input_fns["train"]({"batch_size": 4})
            batch = tf.compat.v1.data.make_one_shot_iterator(fed).get_next()
            features, labels = batch if label_key else (batch, None)
            labels = labels if mode == ModeKeys.EVAL else None
            made[mode] = model.model_fn(features, labels, mode, model.params)
    assert made[ModeKeys.EVAL].loss.shape == ()
    assert set(made[ModeKeys.PREDICT].predictions) == names
