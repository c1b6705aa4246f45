from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator import export

v1 = tf.compat.v1

KINDS = (export.EvalOutput, export.TrainOutput)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def names(signature):
    return {key: info.name for key, info in signature.outputs.items()}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (export.EvalOutput, "tensorflow/supervised/eval"),
        (export.TrainOutput, "tensorflow/supervised/training"),
    ],
)
def test_b337_a_signature_of_loss_metrics_and_predictions(kind, method):
    x = v1.placeholder(tf.float32, [None], name="x")
    loss = tf.reduce_mean(x, name="loss_op")
    value, update = tf.identity(loss, name="value"), tf.identity(loss, name="update")
    output = kind(loss=loss, predictions={"y": x}, metrics={"mean": (value, update)})
    signature = output.as_signature_def({"x": x})
    assert signature.method_name == method
    assert set(signature.inputs) == {"x"}
    assert names(signature) == {
        "loss": "loss_op:0",
        "predictions/y": "x:0",
        "metrics/mean/value": "value:0",
        "metrics/mean/update_op": "update:0",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_b337_lone_tensors_have_the_name_of_their_group(kind):
    x = tf.constant([1.0])
    output = kind(loss=x, predictions=x, metrics=(x, x))
    assert list(output.loss) == ["loss"]
    assert list(output.predictions) == ["predictions"]
    assert list(output.metrics) == ["metrics/value", "metrics/update_op"]


@pytest.mark.parametrize("kind", KINDS)
def test_b337_names_that_tell_their_group_are_left(kind):
    x = tf.constant([1.0])
    output = kind(
        loss={"loss_of_head": x, "other": x},
        predictions={("predictions", "a"): x, ("head", "a"): x},
        metrics={"metrics_a": (x, x), ("head", "b"): (x, x)},
    )
    assert list(output.loss) == ["loss_of_head", "loss/other"]
    assert list(output.predictions) == ["predictions/a", "predictions/head/a"]
    assert list(output.metrics) == [
        "metrics_a/value",
        "metrics_a/update_op",
        "metrics/head/b/value",
        "metrics/head/b/update_op",
    ]


def test_b337_an_update_that_is_an_op_runs_with_a_tensor():
    variable = v1.get_variable("v", initializer=1.0)
    update = tf.group(variable.assign_add(1.0))
    output = export.EvalOutput(metrics={"m": (variable.read_value(), update)})
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(output.metrics["metrics/m/update_op"]).size == 0
        assert session.run(output.metrics["metrics/m/value"]) == 2.0


def test_b337_a_keras_metric_gives_both_halves():
    metric = tf.keras.metrics.Mean(name="mean")
    metric.update_state([1.0, 3.0])
    output = export.EvalOutput(metrics={"mean": metric})
    with v1.Session() as session:
        session.run([variable.initializer for variable in metric.variables])
        session.run(output.metrics["metrics/mean/update_op"])
        assert session.run(output.metrics["metrics/mean/value"]) == 2.0


def test_what_is_not_given_is_none():
    output = export.EvalOutput()
    assert (output.loss, output.predictions, output.metrics) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": {1: "tensor"}}, "loss output key must be a string; got 1"),
        ({"predictions": 3.0}, r"predictions output value must be a Tensor; got 3\.0"),
        ({"metrics": {2: ("value", "update")}}, "metrics output key must be a string; got 2"),
        ({"metrics": {"m": (1.0, 2.0)}}, r"metrics/m output value must be a Tensor; got 1\.0"),
    ],
)
def test_what_is_no_tensor_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        export.EvalOutput(**arguments)


def test_an_update_must_be_a_tensor_or_an_op():
    with pytest.raises(ValueError, match="metrics/m update_op must be a Tensor or Operation"):
        export.EvalOutput(metrics={"m": (tf.constant(1.0), 2.0)})


def test_inputs_are_needed():
    output = export.EvalOutput(loss=tf.constant(1.0))
    with pytest.raises(ValueError, match="tensorflow/supervised/eval `inputs` cannot be empty"):
        output.as_signature_def({})


def test_b329_it_cannot_be_served_from_a_tpu():
    with pytest.raises(ValueError, match="must be have type `ClassificationOutput`"):
        export.EvalOutput(loss=tf.constant(1.0)).map_tensors(tf.identity)
