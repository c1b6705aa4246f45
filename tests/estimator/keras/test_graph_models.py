"""Keras 2 models that were made in a graph, as with eager execution off, become estimators."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras import models
from tests.estimator.keras.models import keras_of
from tests.estimator.tpu import on_cores as cores
from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


def _model(keras):
    """Two outputs, a model within the model, ops between its layers and its own loss."""
    x = keras.Input([4], name="x")
    inner = keras.Sequential(
        [keras.layers.Dense(3, activation="tanh", input_shape=[4]), keras.layers.Dense(3)]
    )
    hidden = inner(x) * 2.0 + tf.reduce_sum(x, axis=1, keepdims=True)
    hidden = keras.layers.BatchNormalization()(hidden)
    score = keras.layers.Dense(1, kernel_regularizer="l2", name="score")(hidden)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(hidden)
    model = keras.Model(x, [score, kind])
    model.add_loss(0.1 * tf.reduce_mean(tf.square(score)))
    model.compile(
        keras.optimizers.legacy.Adam(0.01),
        {"score": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"score": 1.0, "kind": 0.5},
        metrics={"score": ["mae", keras.metrics.RootMeanSquaredError(name="rms")], "kind": "acc"},
    )
    return model


def test_it_computes_what_keras_does_in_the_graph_and_stays_usable(tmp_path):
    keras = keras_of("tf_keras")
    features, score = models.rows()
    labels = (score, np.arange(models.ROWS, dtype="int32")[:, None] % 3)
    input_fn = models.dataset_fn(({"x": features}, labels), batch=models.ROWS, epochs=8)
    with tf.Graph().as_default():
        model = models.give_values(_model(keras))
        model.fit(features, labels, verbose=0)
        values = model.predict(features, batch_size=models.ROWS)
        numbers = model.evaluate(features, labels, batch_size=models.ROWS, verbose=0)
        expected = dict(zip(model.metrics_names, numbers))
        del expected["score_loss"], expected["kind_loss"]

        estimator = tfe.model_to_estimator(model, model_dir=tmp_path / "host")
        # This exchanges the bases of the class that the estimator's copy is of as well.
        keras.layers.Dense(1)
        result = estimator.evaluate(input_fn, steps=1)
        assert result == pytest.approx({**expected, "global_step": 0}, rel=1e-5)
        rows = [next(iter(estimator.predict(input_fn)))[name] for name in ("score", "kind")]
        for row, value in zip(rows, values):
            np.testing.assert_allclose(row, value[0], atol=1e-5)
        estimator.train(input_fn, steps=5)
        assert estimator.evaluate(input_fn, steps=1)["loss"] < expected["loss"]

        on_cores = tfe.keras_to_estimator(
            model,
            config=cores.config_for(tmp_path / "cores", cores=2),
            train_batch_size=models.ROWS,
            eval_batch_size=models.ROWS,
        )
        of_cores = on_cores.evaluate(input_fn, steps=1)
        assert of_cores == pytest.approx({**expected, "global_step": 0}, rel=1e-5)

        again = model.predict(features, batch_size=models.ROWS)
        model.fit(features, labels, verbose=0)
    for value, same in zip(values, again):
        np.testing.assert_array_equal(value, same)


def _subclassed(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, features):
            return self.out(features)

        def get_config(self):
            return {}

        @classmethod
        def from_config(cls, config):
            return cls()

    return Net()


def test_a_subclassed_one_starts_afresh_as_in_the_original(tmp_path, caplog):
    keras = keras_of("tf_keras")
    features, labels = models.rows()
    with tf.Graph().as_default():
        model = _subclassed(keras)
        model.compile(v1.train.GradientDescentOptimizer(0.1), "mse")
        model.fit(features, labels, verbose=0)
        with caplog.at_level("WARNING"):
            estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
        assert "You are creating an Estimator from a Keras model manually subclassed" in caplog.text
        estimator.train(models.dataset_fn((features, labels), batch=models.BATCH), steps=3)
        result = estimator.evaluate(models.dataset_fn((features, labels), batch=models.BATCH))
        assert result["global_step"] == 3


def test_its_session_has_the_options_of_the_config(tmp_path):
    keras = keras_of("tf_keras")
    with tf.Graph().as_default():
        model = keras.Sequential([keras.layers.Dense(1, input_shape=[4])])
        model.compile(keras.optimizers.legacy.SGD(0.1), "mse")
        options = v1.ConfigProto(gpu_options=v1.GPUOptions(per_process_gpu_memory_fraction=0.25))
        config = tfe.RunConfig(model_dir=str(tmp_path), session_config=options)
        tfe.model_to_estimator(model, config=config)
        used = v1.keras.backend.get_session()._config.gpu_options
        assert used.per_process_gpu_memory_fraction == 0.25


def test_what_cannot_be_made_again(tmp_path):
    keras = keras_of("tf_keras")
    with tf.Graph().as_default():
        x = keras.Input([4], name="x")
        model = keras.Model(x, keras.layers.Dense(1)(x))
        with pytest.raises(ValueError, match=r"^The given keras model has not been compiled yet\."):
            tfe.model_to_estimator(model, model_dir=tmp_path)
        model.compile(keras.optimizers.Adam(0.1), "mse")
        says = (
            r"^Please set your optimizer as an instance of `tf.keras.optimizers.legacy.Optimizer`"
        )
        with pytest.raises(ValueError, match=says):
            tfe.model_to_estimator(model, model_dir=tmp_path)
    with pytest.raises(
        ValueError, match=r"was created in a graph that is no longer the default one"
    ):
        tfe.model_to_estimator(model, model_dir=tmp_path)


ROWS, BATCH, STEPS = 8, 8, 2
