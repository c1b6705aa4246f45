"""The signatures of a metagraph, and further ways to a model's predictions: the same numbers from other inputs."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export.small_export import ROWS, call_model, export_model, linear, serve
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.estimator.export import _meta_graph
from tfx_tpu_trainer.serving import describe_saved_model

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def examples_and_features():
    examples = v1.placeholder(tf.string, [None], name="examples")
    x = tf.io.decode_raw(examples, tf.float32, name="x")
    return examples, x


@pytest.mark.behaviour(316)
def test_one_signature_an_output():
    examples, x = examples_and_features()
    built = _meta_graph.build_signature_defs(
        {"examples": examples},
        {"serving_default": export.PredictOutput(x), "score": export.RegressionOutput(x)},
    )
    assert {name: s.method_name for name, s in built.items()} == {
        "serving_default": "tensorflow/serving/predict",
        "score": "tensorflow/serving/regress",
    }


def test_a_lone_receiver_tensor_is_called_input():
    examples, x = examples_and_features()
    built = _meta_graph.build_signature_defs(examples, {"serving_default": export.PredictOutput(x)})
    assert list(built["serving_default"].inputs) == ["input"]


@pytest.mark.behaviour(320)
def test_alternatives_feed_further_down():
    examples, x = examples_and_features()
    built = _meta_graph.build_signature_defs(
        {"examples": examples},
        {"serving_default": export.PredictOutput(x * 2), "score": export.RegressionOutput(x)},
        {"raw": x},
    )
    assert set(built) == {"serving_default", "score", "raw:serving_default"}
    assert built["raw:serving_default"].inputs["input"].name == "x:0"


@pytest.mark.behaviour(318)
def test_what_serving_does_not_take_is_left_out_and_logged(caplog):
    caplog.set_level(logging.INFO)
    x = v1.placeholder(tf.float32, [None, 1], name="x")
    built = _meta_graph.build_signature_defs(
        {"x": x}, {"serving_default": export.PredictOutput(x), "score": export.RegressionOutput(x)}
    )
    assert list(built) == ["serving_default"]
    assert "EXCLUDED" in caplog.text
    assert "single tensor input of type tf.string" in caplog.text


@pytest.mark.behaviour(319)
def test_an_output_that_needs_another_placeholder_is_left_out(caplog):
    caplog.set_level(logging.INFO)
    x, other = v1.placeholder(tf.float32, name="x"), v1.placeholder(tf.float32, name="other")
    with tf.control_dependencies([other]):
        after_other = tf.identity(x)
    outputs = {
        "serving_default": export.PredictOutput(x * 2),
        "sum": export.PredictOutput(x + other),
        "after": export.PredictOutput(after_other),
    }
    built = _meta_graph.build_signature_defs({"x": x}, outputs)
    assert list(built) == ["serving_default"]
    assert "dependency on `other`" in caplog.text


def test_sparse_receiver_tensors_feed_their_parts():
    sparse = v1.sparse_placeholder(tf.float32, [None, 3], name="sparse")
    built = _meta_graph.build_signature_defs(
        {"sparse": sparse}, {"serving_default": export.PredictOutput(tf.sparse.to_dense(sparse))}
    )
    assert built["serving_default"].inputs["sparse"].WhichOneof("encoding") == "coo_sparse"


def test_no_signature_at_all_warns(caplog):
    x, other = v1.placeholder(tf.float32, name="x"), v1.placeholder(tf.float32, name="other")
    assert _meta_graph.build_signature_defs({"x": x}, {"a": export.PredictOutput(other)}) == {}
    assert "Export includes no signatures!" in caplog.text


def test_host_signatures_are_predict_signatures():
    examples, x = examples_and_features()
    built = _meta_graph.build_host_signature_defs(
        {"transform": export.HostSignature(inputs={"examples": examples}, outputs={"x": x})}
    )
    assert built["transform"].method_name == "tensorflow/serving/predict"
    assert built["transform"].outputs["x"].name == "x:0"
    assert _meta_graph.build_host_signature_defs(None) == {}


@pytest.mark.parametrize(
    "kind", [v1.sparse_placeholder, lambda kind: v1.ragged.placeholder(kind, 1, [])]
)
def test_host_signatures_may_be_of_sparse_and_ragged_tensors(kind):
    given = kind(tf.float32)
    doubled = tf.math.multiply(given, 2.0) if isinstance(given, tf.RaggedTensor) else given * 2.0
    signature = export.HostSignature(inputs={"x": given}, outputs={"doubled": doubled})
    built = _meta_graph.build_host_signature_defs({"s": signature})["s"]
    assert built.outputs["doubled"].WhichOneof("encoding") != "name"
    other = export.HostSignature(inputs={"x": kind(tf.float32)}, outputs={"doubled": doubled})
    with pytest.raises(ValueError, match="host signature 's' cannot be served"):
        _meta_graph.build_host_signature_defs({"s": other})


def test_host_signatures_must_be_fed():
    x, other = v1.placeholder(tf.float32, name="x"), v1.placeholder(tf.float32, name="other")
    signature = export.HostSignature(inputs={"x": x}, outputs={"y": other + x})
    with pytest.raises(ValueError, match=r"host signature 's' cannot be served.*`other`"):
        _meta_graph.build_host_signature_defs({"s": signature})
    with pytest.raises(ValueError, match="host signature 's' needs inputs and outputs"):
        _meta_graph.build_host_signature_defs({"s": export.HostSignature({}, {"y": x})})


def lines_or_columns(*, replaces: bool = True) -> export.ServingInputReceiver:
    """Rows as lines of text; or, by name, as three columns."""
    lines = v1.placeholder(tf.string, [None], name="lines")
    columns = {name: v1.placeholder(tf.float32, [None], name=name) for name in "abc"}
    x = tf.reshape(tf.strings.to_number(tf.strings.split(lines, ",").flat_values), [-1, 3])
    stacked = tf.stack(list(columns.values()), axis=1)
    return export.ServingInputReceiver(
        {"x": x},
        {"lines": lines},
        host_signatures={
            "of_columns": export.HostPrediction(columns, {x.name: stacked} if replaces else {})
        },
    )


LINES = [",".join(map(str, row)) for row in ROWS]
COLUMNS = dict(zip("abc", np.transpose(ROWS)))


def test_the_predictions_are_those_of_the_default_signature(tmp_path):
    path = export_model(
        call_model(linear),
        tmp_path,
        serving_input_receiver_fn=lines_or_columns,
        export_to_tpu=False,
    )
    expected = serve(path, {"lines": LINES})
    found = serve(path, COLUMNS, "of_columns")
    assert set(found) == set(expected) == {"output"}
    np.testing.assert_array_equal(found["output"], expected["output"])


def test_variables_and_tables_are_shared(tmp_path):
    def with_table(features):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([0, 1], [5.0, 6.0], key_dtype=tf.int64), 0.0
        )
        bigger = tf.argmax(linear(features), axis=1)
        return {"y": linear_again(features), "of_table": table.lookup(bigger)}

    def linear_again(features):
        with v1.variable_scope(v1.get_variable_scope(), reuse=True):
            return tf.matmul(features["x"], v1.get_variable("w"))

    path = export_model(
        call_model(with_table),
        tmp_path,
        serving_input_receiver_fn=lines_or_columns,
        export_to_tpu=False,
    )
    expected, found = serve(path, {"lines": LINES}), serve(path, COLUMNS, "of_columns")
    np.testing.assert_array_equal(found["y"], expected["y"])
    np.testing.assert_array_equal(found["of_table"], expected["of_table"])
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.saved_model.load(session, ["serve"], path)
        handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
        tables = [op for op in graph.get_operations() if op.type == "HashTableV2"]
    assert [op.name for op in handles] == ["global_step", "w"]
    assert len(tables) == 1


def test_of_a_classification_it_gives_the_classes_and_scores(tmp_path):
    def network(features):
        return {"scores": tf.nn.softmax(linear(features))}

    def model(features, labels, mode, use_tpu):
        spec = call_model(network)(features, labels, mode, use_tpu)
        output = export.ClassificationOutput(scores=spec.predictions["scores"])
        return spec._replace(export_outputs={"serving_default": output})

    path = export_model(
        model, tmp_path, serving_input_receiver_fn=lines_or_columns, export_to_tpu=False
    )
    (host,) = describe_saved_model(path)
    assert host.signatures["of_columns"].method_name == "tensorflow/serving/predict"
    np.testing.assert_array_equal(
        serve(path, COLUMNS, "of_columns")["scores"], serve(path, {"inputs": LINES})["scores"]
    )


def test_inputs_that_don_t_suffice_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"'of_columns' cannot be served: .*`of_columns/.*lines`"):
        export_model(
            call_model(linear),
            tmp_path,
            serving_input_receiver_fn=lambda: lines_or_columns(replaces=False),
            export_to_tpu=False,
        )
