"""Keras 2's WideDeepModel trains each of its two parts with an optimizer of its own."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator.keras import models
from tests.estimator.keras.models import keras_of
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

_STEPS = 3
_OPTIMIZERS = {
    "legacy": lambda keras: [keras.optimizers.legacy.SGD(0.1), keras.optimizers.legacy.Adam(0.1)],
    "todays": lambda keras: ["sgd", "adam"],
}


def _wide_deep(keras, optimizers):
    deep = keras.Sequential([keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
    model = keras.experimental.WideDeepModel(keras.experimental.LinearModel(), deep)
    model.compile(optimizers, "mse", metrics=["mae"])
    features, _ = models.rows()
    model([features, features])
    return models.give_values(model)


@mostly_swept("kind", _OPTIMIZERS, kept=["todays"])
def test_it_trains_as_keras_does_and_goes_on_from_a_checkpoint(kind, tmp_path):
    keras = keras_of("tf_keras")
    features, labels = models.rows()
    input_fn = models.dataset_fn(((features, features), labels), batch=models.ROWS, epochs=_STEPS)
    estimator = tfe.model_to_estimator(
        _wide_deep(keras, _OPTIMIZERS[kind](keras)), model_dir=tmp_path
    )
    estimator.train(input_fn, steps=_STEPS - 1)
    estimator.train(input_fn, steps=1)
    result = estimator.evaluate(input_fn, steps=1)
    trained = _wide_deep(keras, _OPTIMIZERS[kind](keras))
    for _ in range(_STEPS):
        trained.train_on_batch([features, features], labels)
    expected = trained.evaluate(
        [features, features], labels, batch_size=models.ROWS, verbose=0, return_dict=True
    )
    # The original raises the global step once for each optimizer.
    assert result == pytest.approx({**expected, "global_step": _STEPS}, rel=1e-5)


def test_a_model_that_does_not_tell_what_each_trains(tmp_path):
    keras = keras_of("tf_keras")
    model = models.small(keras)
    model.compile(["sgd", "adam"], "mse")
    says = r"^The `optimizer` in `compile` should be a single optimizer\..*'small' has 2"
    with pytest.raises(ValueError, match=says):
        tfe.model_to_estimator(model, model_dir=tmp_path)
    mixed = [v1.train.FtrlOptimizer(0.1), "adam"]
    estimator = tfe.model_to_estimator(_wide_deep(keras, mixed), model_dir=tmp_path)
    features, labels = models.rows()
    with pytest.raises(ValueError, match=r"are of different kinds.*optimizers of one kind"):
        estimator.train(lambda: ((features, features), labels), steps=1)
