"""Further ways to a model's predictions: the same numbers from other inputs, with the same variables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export.small_export import ROWS, call_model, export_model, linear, serve
from tfx_tpu_trainer.estimator import export
from tfx_tpu_trainer.serving import describe_saved_model

v1 = tf.compat.v1


def _receiver_fn(*, replaces: bool = True) -> export.ServingInputReceiver:
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
        call_model(linear), tmp_path, serving_input_receiver_fn=_receiver_fn, export_to_tpu=False
    )
    expected = serve(path, {"lines": LINES})
    found = serve(path, COLUMNS, "of_columns")
    assert set(found) == set(expected) == {"output"}
    np.testing.assert_array_equal(found["output"], expected["output"])


def test_in_the_metagraph_for_cpu_hosts_only(tmp_path):
    path = export_model(call_model(linear), tmp_path, serving_input_receiver_fn=_receiver_fn)
    host, on_tpu = describe_saved_model(path)
    assert set(host.signatures) == {"serving_default", "of_columns"}
    assert host.signatures["of_columns"].inputs == dict.fromkeys("abc", ("float32", (None,)))
    assert host.signatures["of_columns"].outputs == host.signatures["serving_default"].outputs
    assert set(on_tpu.signatures) == {"serving_default"}


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
        serving_input_receiver_fn=_receiver_fn,
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
        model, tmp_path, serving_input_receiver_fn=_receiver_fn, export_to_tpu=False
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
            serving_input_receiver_fn=lambda: _receiver_fn(replaces=False),
            export_to_tpu=False,
        )
