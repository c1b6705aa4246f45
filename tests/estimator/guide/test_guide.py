"""The programs of the Estimator guide, run top to bottom."""

from __future__ import annotations

import pathlib
import runpy
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.matrix

METRICS = {
    "accuracy",
    "accuracy_baseline",
    "auc",
    "auc_precision_recall",
    "average_loss",
    "global_step",
    "label/mean",
    "loss",
    "precision",
    "prediction/mean",
    "recall",
}
PREDICTIONS = {
    "logits",
    "logistic",
    "probabilities",
    "class_ids",
    "classes",
    "all_class_ids",
    "all_classes",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a program in a folder of its own; gives what it left in its names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run_program(name: str) -> dict[str, Any]:
        return runpy.run_module(f"tests.estimator.guide.program_{name}", run_name="__main__")

    return run_program


# The whole page, run unedited in tests/compat/test_programs.py, shows it in `make test`.
@pytest.mark.sweep
def test_titanic_with_feature_columns_is_trained_evaluated_and_served(run, capsys, tmp_path):
    left = run("premade")
    result = left["result"]
    assert set(result) == METRICS
    assert result["global_step"] == 100
    # Its three columns say something of who survived; the rows it sees are drawn without a seed.
    assert result["auc"] > 0.55
    assert result["loss"] == pytest.approx(result["average_loss"], rel=1e-5)
    assert set(left["pred"]) == PREDICTIONS
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(METRICS) + len(PREDICTIONS)
    names = set(left["model"].get_variable_names())
    assert {
        f"linear/linear_model/{name}/weights" for name in ("age", "class", "embark_town")
    } < names
    assert "linear/linear_model/bias_weights" in names
    check_served(left, tmp_path / "export")


def check_served(left: dict[str, Any], folder: pathlib.Path) -> None:
    """Exports the program's model and asks its `predict` of a passenger."""
    columns = [left["age"], left["cls"], left["embark"]]
    receiver_fn = tfe.export.build_parsing_serving_input_receiver_fn(
        tf.feature_column.make_parse_example_spec(columns)
    )
    path = left["model"].export_saved_model(str(folder), receiver_fn)
    predict = tf.saved_model.load(path).signatures["predict"]

    passenger = tf.train.Example()
    feature = passenger.features.feature
    feature["age"].float_list.value.append(30.0)
    feature["class"].bytes_list.value.append(b"Second")
    feature["embark_town"].bytes_list.value.append(b"Cherbourg")
    served = predict(examples=tf.constant([passenger.SerializeToString()]))
    assert set(served) == PREDICTIONS

    age, classes, towns, bias = (
        left["model"].get_variable_value(f"linear/linear_model/{name}")
        for name in ("age/weights", "class/weights", "embark_town/weights", "bias_weights")
    )
    town = tf.strings.to_hash_bucket_fast("Cherbourg", 32).numpy()
    logits = 30 * age + classes[1] + towns[town] + bias
    np.testing.assert_allclose(served["logits"], logits, rtol=1e-5)


@pytest.mark.sweep
def test_a_keras_mobilenet_becomes_an_estimator(run):
    left = run("model_to_estimator")
    assert set(left["result"]) == {"accuracy", "loss", "global_step"}
    assert left["result"]["global_step"] == 3
    estimator, model = left["est_mobilenet_v2"], left["estimator_model"]
    names = estimator.get_variable_names()
    assert any(name.endswith("moving_mean/.ATTRIBUTES/VARIABLE_VALUE") for name in names)
    # The dense layer of the new model was trained, the caller's was not.
    bias = next(name for name in names if name.startswith("layer_with_weights-1/bias/.ATTR"))
    assert np.all(estimator.get_variable_value(bias) != 0)
    assert np.all(model.layers[-1].bias.numpy() == 0)


# The whole page, run unedited in tests/compat/test_programs.py, shows it in `make test`.
@pytest.mark.sweep
def test_a_keras_model_is_trained_and_restored_through_its_objects(run):
    left = run("object_checkpoint")
    assert left["ckpt"].step.numpy() == 10
    trained = left["est"]
    kernel, bias = (
        trained.get_variable_value(f"net/l1/{name}/.ATTRIBUTES/VARIABLE_VALUE")
        for name in ("kernel", "bias")
    )
    assert np.all(kernel)
    rows = np.float32([[1.0], [2.0]])
    np.testing.assert_allclose(left["net"](rows), rows @ kernel + bias, rtol=1e-6)


def test_a_linear_classifier_is_exported_and_served_through_predict(run, capsys):
    left = run("saved_model")
    assert len(capsys.readouterr().out.splitlines()) == 2
    weight, bias = (
        left["estimator"].get_variable_value(f"linear/linear_model/{name}")
        for name in ("x/weights", "bias_weights")
    )
    # As the page shows: 1.5 is of class 1, 3.5 of class 0.
    for x, class_id in ((1.5, 1), (3.5, 0)):
        served = {name: value.numpy() for name, value in left["predict"](x).items()}
        assert set(served) == PREDICTIONS
        logits = x * weight + bias
        np.testing.assert_allclose(served["logits"], logits, rtol=1e-5)
        np.testing.assert_allclose(served["logistic"], 1 / (1 + np.exp(-logits)), rtol=1e-5)
        np.testing.assert_allclose(
            served["probabilities"],
            np.hstack([1 - served["logistic"], served["logistic"]]),
            rtol=1e-5,
        )
        assert served["class_ids"].tolist() == [[class_id]]
        assert served["classes"].tolist() == [[b"%d" % class_id]]
        assert served["all_class_ids"].tolist() == [[0, 1]]
        assert served["all_classes"].tolist() == [[b"0", b"1"]]


# The whole page, run unedited in tests/compat/test_programs.py, shows it in `make test`.
@pytest.mark.sweep
def test_a_linear_regressor_under_a_mirrored_strategy(run):
    left = run("distribute")
    regressor = left["regressor"]
    assert int(regressor.get_variable_value("global_step")) == 10
    weight, bias = (
        regressor.get_variable_value(f"linear/linear_model/{name}").item()
        for name in ("feats/weights", "bias_weights")
    )
    # SGD of a linear model learns with rate 0.2, so that a step leaves a fifth of the error.
    assert weight == pytest.approx(bias) == pytest.approx(0.5, abs=1e-6)
    expected = {"average_loss": 0.0, "label/mean": 1.0, "loss": 0.0, "prediction/mean": 1.0}
    result = regressor.evaluate(left["input_fn"], steps=10)
    assert result == pytest.approx({**expected, "global_step": 10}, abs=1e-6)
