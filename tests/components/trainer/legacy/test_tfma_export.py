"""Tests the export for evaluation with today's TensorFlow Model Analysis."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tensorflow_model_analysis as tfma
from google.protobuf import text_format

from tfx_tpu_trainer import estimator as est
from tfx_tpu_trainer.compat.tfma_export import (
    EvalInputReceiver,
    build_parsing_eval_input_receiver_fn,
    evaluation_receiver,
    export_eval_savedmodel,
)

v1 = tf.compat.v1

_SPEC = {
    "x": tf.io.FixedLenFeature([], tf.float32),
    "age": tf.io.VarLenFeature(tf.int64),
    "y": tf.io.FixedLenFeature([], tf.float32),
}
# Prediction 2 x + 1.
_ROWS = [(0.0, 3, 1.0), (1.0, None, 2.0), (2.0, 3, 5.0), (3.0, 4, 9.0)]


def _model_fn(features, labels, mode):
    slope = v1.get_variable("slope", initializer=2.0)
    predictions = {"predictions": slope * features["x"] + 1.0}
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(predictions["predictions"] - labels))
    train_op = v1.train.GradientDescentOptimizer(0.0).minimize(
        loss, global_step=v1.train.get_global_step()
    )
    return est.EstimatorSpec(mode, loss=loss, train_op=train_op)


def _examples():
    for x, age, y in _ROWS:
        example = tf.train.Example()
        feature = example.features.feature
        feature["x"].float_list.value.append(x)
        feature["y"].float_list.value.append(y)
        if age is not None:
            feature["age"].int64_list.value.append(age)
        yield example.SerializeToString()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    estimator = est.Estimator(_model_fn, model_dir=str(tmp_path_factory.mktemp("model")))
    data = tf.io.parse_example(list(_examples()), _SPEC)
    features, labels = {"x": data["x"].numpy()}, data["y"].numpy()
    estimator.train(lambda: tf.data.Dataset.from_tensors((features, labels)), max_steps=1)
    return estimator


def _eval_receiver_fn():
    receiver = build_parsing_eval_input_receiver_fn(_SPEC, "y")()
    features = {**receiver.features, "doubled": 2 * receiver.features["x"]}
    return EvalInputReceiver(
        features=features, labels=receiver.labels, receiver_tensors=receiver.receiver_tensors
    )


def _signature(path, name):
    return tf.saved_model.load(path.decode(), tags=["serve"]).signatures[name]


def test_tfma_evaluates_the_export(trained, tmp_path):
    path = export_eval_savedmodel(
        estimator=trained,
        export_dir_base=str(tmp_path / "export"),
        eval_input_receiver_fn=_eval_receiver_fn,
    ).decode()
    rows = str(tmp_path / "rows")
    with tf.io.TFRecordWriter(rows) as writer:
        for example in _examples():
            writer.write(example)
    config = text_format.Parse(
        """
        model_specs {
          label_key: "y"
          signature_name: "serving_default"
          preprocessing_function_names: "transform_features"
        }
        slicing_specs {}
        slicing_specs { feature_keys: "age" }
        slicing_specs { feature_keys: "doubled" }
        metrics_specs {
          metrics { class_name: "ExampleCount" }
          metrics { class_name: "MeanSquaredError" }
        }
        """,
        tfma.EvalConfig(),
    )
    result = tfma.run_model_analysis(
        eval_config=config,
        eval_shared_model=tfma.default_eval_shared_model(
            eval_saved_model_path=path, eval_config=config
        ),
        data_location=rows,
        output_path=str(tmp_path / "result"),
    )
    found = {
        key: [
            metrics[""][""][name]["doubleValue"] for name in ("example_count", "mean_squared_error")
        ]
        for key, metrics in result.slicing_metrics
    }
    squares = [0.0, 1.0, 0.0, 4.0]
    assert found == {
        (): [4, pytest.approx(sum(squares) / 4)],
        # The row without an age is in none of its slices.
        (("age", 3),): [2, pytest.approx(0.0)],
        (("age", 4),): [1, pytest.approx(4.0)],
        **{
            (("doubled", 2 * x),): [1, pytest.approx(square)]
            for (x, _, _), square in zip(_ROWS, squares)
        },
    }


def test_predictions_may_come_from_the_receiver_for_serving(trained, tmp_path):
    def serving_receiver_fn():
        x = v1.placeholder(tf.float32, [None])
        return est.export.ServingInputReceiver({"x": x}, {"x": x})

    path = export_eval_savedmodel(
        estimator=trained,
        export_dir_base=str(tmp_path),
        eval_input_receiver_fn=_eval_receiver_fn,
        serving_input_receiver_fn=serving_receiver_fn,
    )
    predicted = _signature(path, "serving_default")(tf.constant([3.0]))
    assert predicted["predictions"].numpy().tolist() == [7.0]
    asked = _signature(path, "transform_features")(tf.constant(list(_examples())))
    assert sorted(asked) == ["doubled", "x", "y"]
    assert asked["y"].numpy().tolist() == [1.0, 2.0, 5.0, 9.0]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        pytest.param(lambda features: features["y"] + 1.0, ["labels", "x", "y"], id="computed"),
        pytest.param(
            lambda features: {"a": features["y"], "x": features["age"]}, ["a", "x", "y"], id="dict"
        ),
        pytest.param(lambda features: None, ["x", "y"], id="none"),
    ],
)
def test_labels_are_found_by_name(labels, names):
    def receiver_fn():
        examples = v1.placeholder(tf.string, [None])
        features = tf.io.parse_example(examples, _SPEC)
        return EvalInputReceiver(
            features=features, labels=labels(features), receiver_tensors={"examples": examples}
        )

    with tf.Graph().as_default(), v1.Session() as session:
        receiver = evaluation_receiver(eval_input_receiver_fn=receiver_fn)
        outputs = receiver.host_signatures["transform_features"].outputs
        assert sorted(outputs) == names
        values = session.run(dict(outputs), {receiver.receiver_tensors["examples"]: [*_examples()]})
    if "a" in names:
        # The label takes the name, and is made dense.
        assert values["x"].tolist() == [[3], [0], [3], [4]]
    if "labels" in names:
        assert values["labels"].tolist() == [2.0, 3.0, 6.0, 10.0]


def test_a_receiver_that_has_the_signature_keeps_its_own():
    def serving_receiver_fn():
        x = v1.placeholder(tf.float32, [None])
        signature = est.export.HostSignature({"x": x}, {"y": 2 * x})
        return est.export.ServingInputReceiver(
            {"x": x}, {"x": x}, host_signatures={"transform_features": signature}
        )

    with tf.Graph().as_default():
        receiver = evaluation_receiver(
            eval_input_receiver_fn=_eval_receiver_fn, serving_input_receiver_fn=serving_receiver_fn
        )
        assert list(receiver.host_signatures["transform_features"].outputs) == ["y"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"receiver_tensors": {"input": 1}}, r"exactly one key named examples, given: \['input'\]"),
        ({"receiver_tensors": 3}, "exactly one key named examples, given: 3"),
        ({"input_refs": [0]}, r"input_refs=\[0\]: .*one row of features for each example"),
        ({"iterator_initializer": "init"}, "iterator_initializer='init': "),
    ],
    ids=["other-key", "no-dict", "input-refs", "iterator"],
)
def test_a_receiver_of_another_kind(arguments, message):
    given = {"features": {}, "labels": None, "receiver_tensors": {"examples": 1}, **arguments}
    with pytest.raises(ValueError, match=message):
        EvalInputReceiver(**given)


def test_what_is_no_receiver(trained, tmp_path):
    with pytest.raises(
        ValueError, match=r"label_key='z' is not in the feature_spec, which has \['age"
    ):
        build_parsing_eval_input_receiver_fn(_SPEC, "z")
    with pytest.raises(ValueError, match="returned 3, not an EvalInputReceiver"):
        export_eval_savedmodel(
            estimator=trained, export_dir_base=str(tmp_path), eval_input_receiver_fn=lambda: 3
        )
