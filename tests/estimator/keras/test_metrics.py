"""Compiled metrics of an estimator are those of Keras's own evaluation."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras import models
from tests.estimator.keras.models import keras3_first, keras_of
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe

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
