"""The export example of the original's page: version 1 with outside_compilation, and version 2.

The page's listing of version 1 is not a program. What differs here from it:

1. Imports: `export_output_lib`, `tpu`, `math_ops` and `string_ops`, TensorFlow's private modules,
   are the public names of what they hold.
2. The first `...` is nothing, `logits = ...` a layer.
3. One export output is the default one: without it the original refuses the model as we do.
4. `argmax` goes along the classes; the listing's goes along the batch.
5. `export_outputs['classes'] =`, broken in two, is one line; the classes have an axis,
   [batch, 1], without which there are none to serve.
6. The last `...` returns the spec, and trains.

Version 2 has no listing; the page says that model_fn "needs to call tpu.rewrite(),
TPUPartitionedCallOp and/or batch_function()" where params['use_tpu'] is True, which is what
`inference_on_tpu` does.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.export import saved_model_facts, small_export
from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator import export as export_output_lib

v1 = tf.compat.v1


def layer(x):
    return v1.layers.dense(x, 4, kernel_initializer=v1.ones_initializer(), name="logits")


def finish(mode, labels, logits, params, **fields):
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits}, **fields)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def model_fn_version_1(features, labels, mode, config, params):
    logits = layer(features["x"])
    export_outputs = {
        "serving_default": export_output_lib.PredictOutput({"logits": logits}),
        "logits": export_output_lib.PredictOutput({"logits": logits}),
    }

    def host_call(logits):
        class_ids = tf.argmax(logits, axis=1)
        classes = tf.strings.as_string(class_ids)[:, None]
        export_outputs["classes"] = export_output_lib.ClassificationOutput(classes=classes)

    v1.tpu.outside_compilation(host_call, logits)
    return finish(mode, labels, logits, params, export_outputs=export_outputs)


def model_fn_version_2(features, labels, mode, config, params):
    if mode == ModeKeys.PREDICT and params["use_tpu"]:
        (logits,) = tpu.inference_on_tpu(
            lambda x: [layer(x)],
            [features["x"]],
            num_batch_threads=2,
            max_batch_size=8,
            batch_timeout_micros=1000,
            allowed_batch_sizes=[2, 8],
        )
    else:
        logits = layer(features["x"])
    return finish(mode, labels, logits, params)


MODEL_FNS = {1: model_fn_version_1, 2: model_fn_version_2}
BATCH = 16
PLACES = pytest.mark.parametrize(
    ("use_tpu", "cores"),
    [
        pytest.param(False, None, marks=pytest.mark.sweep),
        pytest.param(True, 4, marks=pytest.mark.matrix),
        pytest.param(True, 8, marks=pytest.mark.sweep),
    ],
    ids=["host", "4 cores", "8 cores"],
)


def config_for(folder, cores, **options):
    tpu_config = tpu.TPUConfig(num_shards=cores, iterations_per_loop=5)
    return tpu.RunConfig(model_dir=str(folder), master="emulated", tpu_config=tpu_config, **options)


ROWS = np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.5], [0.4, 0.4, 0.4]], np.float32)


def rows_input_fn(params):
    x = np.resize(ROWS, (BATCH, 3))
    labels = np.arange(BATCH) % 4
    return (
        tf.data.Dataset.from_tensor_slices(({"x": x}, labels))
        .repeat()
        .batch(params["batch_size"], drop_remainder=True)
    )


def serialized_rows():
    def example(row):
        value = tf.train.Feature(float_list=tf.train.FloatList(value=row))
        return tf.train.Example(features=tf.train.Features(feature={"x": value}))

    return [example(row).SerializeToString() for row in ROWS]


def train_and_export(folder, version, *, use_tpu, cores):
    """Trains a step, exports, and gives the SavedModel's path and the logits that it must serve."""
    estimator = tpu.TPUEstimator(
        MODEL_FNS[version],
        config=config_for(folder / "model", cores),
        use_tpu=use_tpu,
        train_batch_size=BATCH,
        export_saved_model_api_version=version,
    )
    estimator.train(rows_input_fn, max_steps=1)
    receiver_fn = export_output_lib.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    path = estimator.export_saved_model(str(folder / "export"), receiver_fn).decode()
    kernel, bias = estimator.get_variable_value(["logits/kernel", "logits/bias"])
    return path, ROWS @ kernel + bias


@PLACES
def test_export_version_1_with_outside_compilation(tmp_path, use_tpu, cores):
    path, logits = train_and_export(tmp_path, 1, use_tpu=use_tpu, cores=cores)
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert set(of_host["signatures"]) == {"serving_default", "logits", "classes"}
    assert of_tpu["signatures"] == of_host["signatures"]
    assert "AsString" in of_tpu["outside_compiled_ops"]
    assert "MatMul" not in of_tpu["outside_compiled_ops"]
    for serve in (small_export.serve, small_export.serve_tpu_graph):
        answers = serve(path, {"examples": serialized_rows()})
        np.testing.assert_allclose(answers["logits"], logits, rtol=1e-5)
        answers = serve(path, {"inputs": serialized_rows()}, signature="classes")
        best = [[str(number).encode()] for number in logits.argmax(axis=1)]
        assert answers["classes"].tolist() == best


@PLACES
def test_export_version_2_with_inference_on_tpu(tmp_path, use_tpu, cores):
    path, logits = train_and_export(tmp_path, 2, use_tpu=use_tpu, cores=cores)
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert of_host["batch_functions"] == []
    (batch_function,) = of_tpu["batch_functions"]
    assert batch_function["allowed_batch_sizes"] == [2, 8]
    for serve in (small_export.serve, small_export.serve_tpu_graph):
        answers = serve(path, {"examples": serialized_rows()})
        np.testing.assert_allclose(answers["logits"], logits, rtol=1e-5)
