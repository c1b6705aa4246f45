"""Estimators of Keras 2 models against those of the original, as `recorded_models.py` recorded them.

Compiled metrics are those of Keras's own evaluation. The listings of docs/keras.md run, too.
"""

import functools
import json
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras import models, recorded_models
from tests.estimator.keras.models import keras3_first, keras_of
from tests.listings import DOCS, run_listings
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe

ORIGINAL = json.loads(recorded_models.RECORDING.read_text("utf-8"))


@functools.cache
def _ours(case, folder):
    keras = keras_of("tf_keras")
    return recorded_models.facts_of(keras, tfe, tfe.model_to_estimator, case, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recorded")


_KEPT = [("one_output", "legacy_adam", "checkpoint"), ("two_outputs", "v1_adagrad", "saver")]
in_each_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(case), marks=() if case in _KEPT else pytest.mark.sweep)
        for case in recorded_models.CASES
    ],
)


@in_each_case
@pytest.mark.behaviour(424, 425, 429)
def test_values_are_those_of_the_original(case, folder):
    original, ours = ORIGINAL["-".join(case)], _ours(case, folder / "-".join(case))
    np.testing.assert_allclose(ours["losses"], original["losses"], rtol=1e-5)
    for part in ("untrained", "evaluated", "predicted"):
        assert set(ours[part]) == set(original[part])
        for name, value in original[part].items():
            np.testing.assert_allclose(ours[part][name], value, rtol=2e-5, atol=1e-6)


@in_each_case
@pytest.mark.behaviour(420, 430)
def test_checkpoints_and_signatures_are_named_as_the_originals(case, folder):
    original, ours = ORIGINAL["-".join(case)], _ours(case, folder / "-".join(case))
    assert ours["signatures"] == original["signatures"]
    names, theirs = ours["variables"], original["variables"]
    if case[1] == "adam":
        # Of today's optimizers ours has the variables; the original makes legacy ones of them.
        names, theirs = (
            {n: v for n, v in each.items() if not _trains(n)} for each in (names, theirs)
        )
        assert names
    assert names == theirs


def _trains(name):
    return "OPTIMIZER_SLOT" in name or name.startswith(("optimizer/", "training/"))


@pytest.mark.behaviour(422)
def test_statistics_are_kept_where_the_original_loses_them(tmp_path):
    model, ours = recorded_models.prediction_with_statistics(
        keras_of("tf_keras"), tfe.model_to_estimator, tmp_path
    )
    row = recorded_models.first_row("one_output")["hidden_input"]
    np.testing.assert_allclose(ours["score"], model(row).numpy()[0], rtol=1e-5)
    recorded_models.give_statistics(model, mean=0.0, variance=1.0)
    original = ORIGINAL["with_statistics"]["untrained"]
    np.testing.assert_allclose(original["score"], model(row).numpy()[0], rtol=1e-5)
    assert abs(original["score"][0] - ours["score"][0]) > 0.01


def test_the_listings_of_the_docs_page_run(tmp_path, monkeypatch):
    # They name no folder for their model.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = run_listings(DOCS / "keras.md")
    assert set(names["metrics"]) == set(names["metrics_of_cores"]) == {"loss", "mae", "global_step"}
    # The rows and the batches are the same: so are the steps.
    for name, value in names["metrics"].items():
        np.testing.assert_allclose(names["metrics_of_cores"][name], value, rtol=1e-4)
    row = np.ones([1, 4], "float32")
    assert not np.allclose(names["restored"](row), names["model"](row))


_CLASSES = 3
_BATCH = 16
_OF_CLASSES = [
    "accuracy",
    "binary_accuracy",
    "binary_crossentropy",
    "categorical_accuracy",
    "categorical_crossentropy",
    "categorical_hinge",
    "cosine_similarity",
    "hinge",
    "kl_divergence",
    "mae",
    "mape",
    "mean_squared_error",
    "msle",
    "poisson",
    "squared_hinge",
    "top_k_categorical_accuracy",
    "AUC",
]
_OF_IDS = [
    "acc",
    "sparse_categorical_accuracy",
    "sparse_categorical_crossentropy",
    "sparse_top_k_categorical_accuracy",
]
_OF_ONE = ["acc", "binary_accuracy", "binary_crossentropy", "mse", "hinge", "poisson", "AUC"]
# Kind of the labels -> number of outputs, their activation, the loss, the metrics.
_KINDS = {
    "classes": (_CLASSES, "softmax", "categorical_crossentropy", _OF_CLASSES),
    "ids": (_CLASSES, "softmax", "sparse_categorical_crossentropy", _OF_IDS),
    "one": (1, "sigmoid", "binary_crossentropy", _OF_ONE),
}


def _names(library, names):
    # Keras 2 knows some of Keras 3's names only in their long form.
    long = {"kl_divergence": "kullback_leibler_divergence"}
    return [long.get(name, name) if library == "tf_keras" else name for name in names]


def _labels(kind):
    ids = np.random.RandomState(2).randint(0, _CLASSES, models.ROWS)
    return {
        "classes": np.eye(_CLASSES, dtype="float32")[ids],
        "ids": ids[:, None],
        "one": (ids[:, None] > 0).astype("float32"),
    }[kind]


def _model(keras, activation, count, by_an_op):
    x = keras.Input([4], name="x")
    if by_an_op:
        logits = keras.layers.Dense(count)(x)
        last = keras.layers.Lambda(getattr(tf.nn, activation), output_shape=lambda shape: shape)
        return keras.Model(x, last(logits))
    return keras.Model(x, keras.layers.Dense(count, activation=activation)(x))


@keras3_first
@mostly_swept("by_an_op", [False, True], kept=[False])
@mostly_swept("kind", _KINDS, kept=["classes"])
@pytest.mark.behaviour(425)
def test_every_named_metric_is_that_of_keras(library, kind, by_an_op, tmp_path):
    # Keras computes the crossentropies of what made the output, as its mark or its op says.
    keras = keras_of(library)
    count, activation, loss, names = _KINDS[kind]
    model = _model(keras, activation, count, by_an_op)
    model.compile("sgd", loss, metrics=_names(library, names))
    models.give_values(model)
    features, labels = models.rows()[0], _labels(kind)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    result = estimator.evaluate(models.dataset_fn(({"x": features}, labels), batch=_BATCH))
    expected = model.evaluate(features, labels, batch_size=_BATCH, verbose=0, return_dict=True)
    assert result == pytest.approx({**expected, "global_step": 0}, rel=1e-5)
    if kind == "classes" and not by_an_op:
        # Not the binary crossentropy of the probabilities, but of the softmax's logits.
        given = np.clip(model.predict(features, verbose=0), 1e-7, 1 - 1e-7)
        of_each = labels * np.log(given) + (1 - labels) * np.log(1 - given)
        assert abs(result["binary_crossentropy"] + np.mean(of_each)) > 0.02
