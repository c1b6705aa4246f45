"""Checkpoints of Keras models: Keras reads the estimator's, and the estimator Keras's."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras import models
from tests.estimator.keras.models import keras2_first, keras3_first, keras_of
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.matrix


def _optimizer(keras):
    return keras.optimizers.Adam(0.01)


@keras2_first
@pytest.mark.behaviour(438)
def test_a_checkpoint_of_objects_is_restored_by_keras_and_the_other_way_round(library, tmp_path):
    keras = keras_of(library)
    model = models.small(keras, _optimizer(keras))
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path / "there")
    estimator.train(models.input_fn(epochs=3), steps=3)
    expected = models.predicted(estimator)

    restored = models.copy_of(keras, model, _optimizer(keras))
    if library == "keras":
        restored.optimizer.build(restored.trainable_variables)
    else:
        models.fit(restored, steps=1)
    status = tf.train.Checkpoint(restored).restore(estimator.latest_checkpoint())
    status.assert_nontrivial_match()
    features, _ = models.rows()
    np.testing.assert_allclose(restored.predict(features, verbose=0), expected, atol=1e-6)
    assert int(np.array(restored.optimizer.iterations)) == 3
    # Momenta as well: the next step is the same on both sides.
    restored.train_on_batch(*(rows[24:] for rows in models.rows()))
    continued = tfe.model_to_estimator(model, model_dir=tmp_path / "there")
    skipping = models.input_fn(epochs=3)
    continued.train(lambda: skipping().skip(3), steps=1)
    after = restored.predict(features, verbose=0)
    np.testing.assert_allclose(models.predicted(continued), after, atol=1e-6)

    written_by = models.give_values(models.copy_of(keras, model), seed=5)
    written_by.estimator_global_step = tf.Variable(7, dtype=tf.int64)
    written = tf.train.Checkpoint(written_by).write(str(tmp_path / "keras_wrote"))
    there = [
        row["out"]
        for row in estimator.predict(models.input_fn(labelled=False), checkpoint_path=written)
    ]
    np.testing.assert_allclose(there, written_by.predict(features, verbose=0), atol=1e-6)
    result = estimator.evaluate(models.input_fn(), checkpoint_path=written)
    assert result["global_step"] == 7


@pytest.mark.sweep
@pytest.mark.behaviour(438)
def test_load_weights_of_keras_2_reads_an_estimators_checkpoint(tmp_path):
    keras = keras_of("tf_keras")
    model = models.small(keras, keras.optimizers.legacy.Adam(0.01))
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    estimator.train(models.input_fn(), steps=2)
    restored = models.small(keras, keras.optimizers.legacy.Adam(0.01))
    models.give_values(restored, seed=9)
    restored.load_weights(estimator.latest_checkpoint()).expect_partial()
    features, _ = models.rows()
    np.testing.assert_allclose(
        restored.predict(features, verbose=0), models.predicted(estimator), atol=1e-6
    )


@keras2_first
@mostly_swept("form", ["checkpoint", "saver"], kept=["saver"])
@pytest.mark.behaviour(420, 422)
def test_a_first_checkpoint_and_a_restart(library, form, tmp_path):
    keras = keras_of(library)
    model = models.small(keras, _optimizer(keras))
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path, checkpoint_format=form)
    first = tf.train.latest_checkpoint(str(tmp_path / "keras"))
    assert first == str(tmp_path / "keras" / "keras_model.ckpt")
    saved = {name for name, _ in tf.train.list_variables(first)}
    assert ("_CHECKPOINTABLE_OBJECT_GRAPH" in saved) == (form == "checkpoint")
    estimator.train(models.input_fn(), steps=2)
    value = models.predicted(estimator)
    # Whatever values the model has by then: those of the checkpoint count.
    models.give_values(model, seed=8)
    again = tfe.model_to_estimator(model, model_dir=tmp_path, checkpoint_format=form)
    np.testing.assert_allclose(models.predicted(again), value, atol=1e-6)
    again.train(models.input_fn(), steps=1)
    assert int(tf.train.latest_checkpoint(str(tmp_path)).rpartition("-")[2]) == 3


@pytest.mark.sweep
@keras3_first
@pytest.mark.behaviour(420)
def test_on_cores_too(library, tmp_path):
    keras = keras_of(library)
    model = models.without_batch_norm(keras, _optimizer(keras))
    estimator = tfe.keras_to_estimator(
        model, config=on_cores.config_for(tmp_path), train_batch_size=8, predict_batch_size=8
    )
    estimator.train(models.input_fn(epochs=2), steps=2)
    restored = models.copy_of(keras, model, _optimizer(keras))
    checkpoint = tf.train.Checkpoint(restored)
    checkpoint.restore(estimator.latest_checkpoint()).assert_nontrivial_match()
    np.testing.assert_allclose(
        restored.predict(models.rows()[0], verbose=0), models.predicted(estimator), atol=1e-6
    )
