"""A Keras model trains, evaluates and predicts the same on one core, on four and with Keras."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras import models
from tests.estimator.keras.models import keras2_first, keras3_first, keras_of
from tests.estimator.tpu import on_cores as cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

STEPS = 4
BATCH = 16
SIZES = {"train_batch_size": BATCH, "eval_batch_size": BATCH, "predict_batch_size": BATCH}

OPTIMIZERS = {
    "tf_keras-adam": lambda keras: keras.optimizers.Adam(0.05, clipnorm=0.5),
    "tf_keras-legacy": lambda keras: keras.optimizers.legacy.Adam(0.05, clipnorm=0.5),
    "tf_keras-v1": lambda keras: v1.train.AdamOptimizer(0.05),
    "keras-momentum": lambda keras: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5),
}


def on_cores(model, folder, number, **options):
    config = cores.config_for(folder, cores=number, save_summary_steps=None)
    return tpu_estimator(model, config, **options)


def tpu_estimator(model, config, **options):
    return tfe.keras_to_estimator(model, config=config, **{**SIZES, **options})


def learned(estimator, *, batch=BATCH):
    """Trains; gives what is evaluated and predicted."""
    estimator.train(models.input_fn(batch=batch, epochs=STEPS), steps=STEPS)
    return estimator.evaluate(models.input_fn(batch=batch)), models.predicted(estimator)


def learned_by_keras(keras, model, optimizer, **compiled):
    trained = models.copy_of(keras, model, optimizer, **compiled)
    models.fit(trained, batch=BATCH, steps=STEPS)
    features, labels = models.rows()
    result = trained.evaluate(features, labels, batch_size=BATCH, verbose=0, return_dict=True)
    return {**result, "global_step": STEPS}, trained.predict(features, verbose=0)


@mostly_swept("kind", OPTIMIZERS, kept=["tf_keras-adam"])
@mostly_swept("number", [1, 4], kept=[4])
def test_one_core_and_four_make_the_steps_of_keras(kind, number, tmp_path):
    keras = keras_of(kind.partition("-")[0])
    model = models.without_batch_norm(keras, OPTIMIZERS[kind](keras))
    expected, predicted = learned_by_keras(keras, model, OPTIMIZERS[kind](keras))
    with models.left_alone(model):
        result, rows = learned(on_cores(model, tmp_path, number))
        assert result == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(rows, predicted, rtol=1e-4, atol=1e-5)


@keras3_first
def test_sums_of_losses_are_summed_over_cores_and_regularization_counts_once(library, tmp_path):
    keras = keras_of(library)

    def compiled():
        return {"loss": keras.losses.MeanSquaredError(reduction="sum"), "metrics": []}

    model = models.without_batch_norm(keras, keras.optimizers.SGD(0.002), **compiled())
    _, expected = learned_by_keras(keras, model, keras.optimizers.SGD(0.002), **compiled())
    _, predicted = learned(on_cores(model, tmp_path, 4))
    np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
    _, of_means = learned_by_keras(keras, model, keras.optimizers.SGD(0.002))
    assert np.max(np.abs(of_means - predicted)) > 0.1


def test_losses_of_two_kinds_are_refused_on_cores(tmp_path):
    keras = keras_of("tf_keras")
    x = keras.Input([4], name="x")
    model = keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])
    model.compile("sgd", ["mse", keras.losses.MeanSquaredError(reduction="sum")])
    estimator = on_cores(model, tmp_path, 2)
    with pytest.raises(ValueError, match=r"are sums over rows and others means, but.*same reduct"):
        estimator.train(models.input_fn(epochs=2), steps=1)


@keras2_first
def test_weighted_metrics_and_masks_reach_the_metrics_of_all_cores(library, tmp_path):
    keras = keras_of(library)
    words = keras.Input([3], dtype="int32", name="words")
    embedded = keras.layers.Embedding(7, 3, mask_zero=True)(words)
    tags = keras.layers.Dense(3, activation="softmax", name="tags")(embedded)
    model = keras.Model(words, tags)
    loss = "sparse_categorical_crossentropy"
    model.compile("sgd", loss, metrics=["accuracy"], weighted_metrics=[loss])
    source = np.random.RandomState(0)
    sentences = source.randint(0, 7, [models.ROWS, 3]).astype("int32")
    labels = source.randint(0, 3, [models.ROWS, 3]).astype("int32")
    expected = model.evaluate(sentences, labels, batch_size=BATCH, verbose=0, return_dict=True)
    result = on_cores(model, tmp_path, 4).evaluate(
        models.dataset_fn(({"words": sentences}, labels), batch=BATCH)
    )
    assert set(result) == {*expected, "global_step"}
    # A masked loss is a mean over what each core has of it; metrics see all cores' rows.
    del expected["loss"]
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-5)


@keras2_first
@mostly_swept("on_cores_", [True, False], kept=[True])
def test_use_tpu_decides_where_a_tpu_estimator_runs(library, on_cores_, tmp_path):
    keras = keras_of(library)
    model = models.small(keras)
    config = cores.config_for(tmp_path, cores=2)
    estimator = tpu_estimator(model, config, use_tpu=on_cores_, export_to_tpu=False)
    assert isinstance(estimator, tpu.TPUEstimator)
    expected = model.predict(models.rows()[0], verbose=0)
    np.testing.assert_allclose(models.predicted(estimator), expected, atol=1e-6)
    estimator.train(models.input_fn(epochs=2), steps=2)
    # The first core's statistics are kept: on the host all rows are the first core's.
    key = next(key for key in estimator.get_variable_names() if "moving_mean" in key)
    rows = models.rows()[0]
    hidden = keras.Model(model.inputs, model.get_layer("hidden").output)
    statistics = np.array(model.get_layer("norm").moving_mean)
    share = BATCH // 2 if on_cores_ else BATCH
    first = 0.99 * statistics + 0.01 * hidden(rows[:share]).numpy().mean(axis=0)
    np.testing.assert_allclose(estimator.get_variable_value(key), first, rtol=0.02)


def mirrored():
    return tf.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(4)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


@mostly_swept("kind", OPTIMIZERS, kept=["tf_keras-legacy"])
def test_under_a_mirrored_strategy(kind, tmp_path):
    keras = keras_of(kind.partition("-")[0])
    model = models.without_batch_norm(keras, OPTIMIZERS[kind](keras))
    expected, predicted = learned_by_keras(keras, model, OPTIMIZERS[kind](keras))
    strategy = mirrored()
    config = tfe.RunConfig(
        model_dir=str(tmp_path), train_distribute=strategy, eval_distribute=strategy
    )
    estimator = tfe.model_to_estimator(model, config=config)
    result, rows = learned(estimator, batch=BATCH // 4)
    assert result == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(rows, predicted, rtol=1e-4, atol=1e-5)


@pytest.mark.sweep
def test_from_estimator_takes_an_estimator_of_a_keras_model(tmp_path):
    keras = keras_of("tf_keras")
    model = models.without_batch_norm(keras, keras.optimizers.legacy.SGD(0.05))
    expected, predicted = learned_by_keras(keras, model, keras.optimizers.legacy.SGD(0.05))
    estimator = tpu.from_estimator(
        tfe.model_to_estimator(model, model_dir=tmp_path / "host"),
        cores.config_for(tmp_path / "cores", cores=4),
        model_dir=str(tmp_path / "cores"),
        **SIZES,
    )
    result, rows = learned(estimator)
    assert result == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(rows, predicted, rtol=1e-4, atol=1e-5)
