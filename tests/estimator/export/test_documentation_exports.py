"""The two ways to export of the original's page, as programs.

Completed, for the page has fragments: the parts shown as `...`; `math_ops`, `string_ops`, `tpu` and
`export_output_lib` by their public names. Edited: the line that is broken in two is joined; argmax
goes along the classes, not the batch; one export output is the default, which the original asks for
as we do; classes get an axis, [batch, 1], without which TensorFlow Serving has none to read.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import saved_model_facts, small_export, tpu_graph_on_host
from tfx_tpu_trainer.estimator import export, tpu

v1 = tf.compat.v1

ROWS = [[0.1, 0.2, 0.3], [1.0, -1.0, 0.5]]
WEIGHTS = np.array([[1.0, 0.0], [0.0, 2.0], [0.5, 0.5]], np.float32)
FEATURE_SPEC = {"x": tf.io.FixedLenFeature([3], tf.float32)}


def dense(x):
    return tf.matmul(x, v1.get_variable("weights", initializer=WEIGHTS))


def finish(mode, logits, labels, export_outputs):
    if mode == "infer":
        return tpu.TPUEstimatorSpec(
            mode, predictions={"logits": logits}, export_outputs=export_outputs
        )
    loss = 0.0 * (tf.reduce_mean(logits) + tf.reduce_mean(labels))  # WEIGHTS are to stay
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def model_fn_version_1(features, labels, mode, config, params):
    logits = dense(features["x"])
    export_outputs = {
        "logits": export.PredictOutput({"logits": logits}),
        "serving_default": export.PredictOutput({"logits": logits}),
    }

    def host_call(logits):
        class_ids = tf.argmax(logits, axis=1)
        classes = tf.expand_dims(tf.as_string(class_ids), 1)
        export_outputs["classes"] = export.ClassificationOutput(classes=classes)

    v1.tpu.outside_compilation(host_call, logits)
    return finish(mode, logits, labels, export_outputs)


def model_fn_version_2(features, labels, mode, config, params):
    """Version 2 has no listing: "the user needs to call rewrite() and/or batch_function()"."""
    x = features["x"]
    if mode == "infer" and params["use_tpu"]:
        weights = v1.get_variable("weights", initializer=WEIGHTS)

        @tf.nondifferentiable_batch_function(2, 4, 1000, [4], autograph=False)
        def batched(rows):
            return v1.tpu.rewrite(lambda rows: [tf.matmul(rows, weights)], [rows])

        (logits,) = batched(x)
    else:
        logits = dense(x)
    return finish(mode, logits, labels, None)


def train_and_export(model_fn, version, folder):
    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=str(folder / "model")),
        use_tpu=False,
        train_batch_size=2,
        export_saved_model_api_version=version,
    )

    def input_fn(params):
        data = {"x": tf.constant(ROWS)}, tf.constant([0.0, 1.0])
        return tf.data.Dataset.from_tensors(data).repeat()

    estimator.train(input_fn, max_steps=1)
    receiver_fn = export.build_parsing_serving_input_receiver_fn(FEATURE_SPEC)
    return estimator.export_saved_model(str(folder / "export"), receiver_fn).decode()


@pytest.fixture(scope="module")
def examples():
    def example(row):
        value = tf.train.Feature(float_list=tf.train.FloatList(value=row))
        return tf.train.Example(features=tf.train.Features(feature={"x": value}))

    return [example(row).SerializeToString() for row in ROWS]


def test_b331_version_1_leaves_host_call_outside(examples, tmp_path):
    path = train_and_export(model_fn_version_1, 1, tmp_path)
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert set(of_host["signatures"]) == {"serving_default", "logits", "classes"}
    assert of_tpu["signatures"] == of_host["signatures"]
    assert "AsString" in of_tpu["outside_compiled_ops"]
    assert "MatMul" not in of_tpu["outside_compiled_ops"]
    logits = ROWS @ WEIGHTS
    classes = [[str(best).encode()] for best in logits.argmax(axis=1)]
    for serve in (small_export.serve, tpu_graph_on_host.serve):
        answers = serve(path, {"examples": examples})
        np.testing.assert_allclose(answers["logits"], logits, atol=1e-6)
        answers = serve(path, {"inputs": examples}, signature="classes")
        assert answers["classes"].tolist() == classes


def test_b325_version_2_calls_rewrite_and_batch_function_itself(examples, tmp_path):
    path = train_and_export(model_fn_version_2, 2, tmp_path)
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert of_host["batch_functions"] == []
    assert of_tpu["batch_functions"] == [
        {
            "num_batch_threads": 2,
            "max_batch_size": 4,
            "batch_timeout_micros": 1000,
            "allowed_batch_sizes": [4],
        }
    ]
    logits = ROWS @ WEIGHTS
    for serve in (small_export.serve, tpu_graph_on_host.serve):
        answers = serve(path, {"examples": examples})
        np.testing.assert_allclose(answers["logits"], logits, atol=1e-6)
