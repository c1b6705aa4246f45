"""What `model_to_estimator` and `keras_to_estimator` take and refuse."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator.keras import models
from tests.estimator.keras.models import both_keras, keras3_first, keras_of
from tests.estimator.public_names import arguments_of
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1


@pytest.mark.behaviour(436)
def test_the_arguments_are_the_originals():
    names = ["keras_model=None", "keras_model_path=None", "custom_objects=None", "model_dir=None"]
    names += ["config=None", "checkpoint_format='checkpoint'", "metric_names_map=None"]
    # Ours, by name only.
    names += ["export_outputs=None", "*, safe_mode=True"]
    assert arguments_of(tfe.model_to_estimator) == names
    names[5] = "checkpoint_format='saver'"
    assert arguments_of(tfe.v1.model_to_estimator) == names


@pytest.mark.behaviour(436)
def test_an_estimator_and_no_tpu_estimator(tmp_path):
    model = models.small(keras_of("tf_keras"))
    for number, make in enumerate((tfe.model_to_estimator, tfe.v1.model_to_estimator)):
        made = make(model, config=on_cores.config_for(tmp_path / str(number)))
        assert type(made) is tfe.Estimator
    names = {name for name, _ in tf.train.list_variables(str(tmp_path / "1" / "keras"))}
    assert {"global_step", "hidden/kernel", "norm/moving_variance"} <= names


@both_keras
@pytest.mark.behaviour(419)
@row(
    "estimator",
    "a Keras model without `compile`",
    "The given keras model has not been compiled yet.",
)
def test_a_model_without_compile(library, refused):
    keras = keras_of(library)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)], name="bare")
    with refused(ValueError):
        tfe.model_to_estimator(model)


@pytest.mark.behaviour(418)
@row(
    "estimator",
    "`model_to_estimator('model')`",
    "should be a model of Keras 2",
    "or Keras 3",
    "got 'model'",
)
def test_what_is_no_model(refused):
    with refused(ValueError):
        tfe.model_to_estimator("model")


@pytest.mark.behaviour(420)
@row(
    "estimator",
    "`model_to_estimator(checkpoint_format='name')`",
    "Checkpoint format must be one of",
    "Got name",
)
def test_a_format_that_there_is_not(refused):
    model = models.small(keras_of("tf_keras"))
    with refused(ValueError):
        tfe.model_to_estimator(model, checkpoint_format="name")


@pytest.mark.behaviour(433)
def test_two_model_folders_or_none(tmp_path, monkeypatch):
    model = models.small(keras_of("tf_keras"))
    config = tfe.RunConfig(model_dir=str(tmp_path / "one"))
    with pytest.raises(ValueError, match=r"`model_dir` are set both.*two.*one"):
        tfe.model_to_estimator(model, config=config, model_dir=str(tmp_path / "two"))
    assert tfe.model_to_estimator(model, config=config).model_dir == str(tmp_path / "one")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert pathlib.Path(tfe.model_to_estimator(model).model_dir).parent == tmp_path


@keras3_first
@pytest.mark.behaviour(426)
def test_metric_names(library, tmp_path):
    model = models.small(keras_of(library), metrics=["mae", "mse"])
    names = {"mae": "absolute", "mse": "squared"}
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path, metric_names_map=names)
    result = estimator.evaluate(models.input_fn())
    assert set(result) == {"absolute", "squared", "loss", "global_step"}
    for wrong, says in (
        ({"mae": "absolute"}, r"metric names: \['mse'\] do not exist.*Add them"),
        ({**names, "huber": "x"}, r"Expected keys: \['mae', 'mse'\], Received: \['huber'\]"),
    ):
        estimator = tfe.model_to_estimator(model, model_dir=tmp_path, metric_names_map=wrong)
        with pytest.raises(ValueError, match=f"Invalid `metric_names_map`.*{says}"):
            estimator.evaluate(models.input_fn())


def _given(features, labels):
    return lambda: tf.data.Dataset.from_tensors((features, labels))


_ROWS = np.zeros([2, 4], "float32")
_ONES = np.ones([2, 1], "float32")
_BAD_INPUT = {
    "features": ((_ROWS, _ROWS), _ONES, r"1 inputs, \['x'\]; input_fn returns 2"),
    "labels": ({"x": _ROWS}, (_ONES, _ONES), r"1 outputs, \['out'\].*returns 2 labels"),
    "weight": (
        {"features": {"x": _ROWS}, "sample_weights": (_ONES, _ONES)},
        _ONES,
        r"a list of 2 elements, but the model has 1 outputs, \['out'\]",
    ),
}


@pytest.mark.parametrize("case", _BAD_INPUT)
@pytest.mark.behaviour(427, 428)
def test_input_that_does_not_fit(case, tmp_path):
    features, labels, says = _BAD_INPUT[case]
    estimator = tfe.model_to_estimator(models.small(keras_of("tf_keras")), model_dir=tmp_path)
    with pytest.raises(ValueError, match=says):
        estimator.evaluate(_given(features, labels))


@row(
    "estimator",
    "input without labels for a Keras model",
    "no labels, but the loss 'mse'",
    "['out']",
)
def test_input_without_labels(tmp_path, refused):
    estimator = tfe.model_to_estimator(models.small(keras_of("tf_keras")), model_dir=tmp_path)
    with refused(ValueError):
        estimator.train(models.input_fn(labelled=False), steps=1)


@row(
    "estimator",
    "a Keras model that has nothing to train",
    "no trainable variable",
    "trainable = True on the model",
)
def test_a_model_with_nothing_to_train(tmp_path, refused):
    keras = keras_of("tf_keras")
    model = models.small(keras)
    model.trainable = False
    model.compile("sgd", "mse")
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    assert estimator.evaluate(models.input_fn())["loss"] > 0
    with refused(ValueError):
        estimator.train(models.input_fn(), steps=1)


@both_keras
@pytest.mark.behaviour(432)
def test_custom_objects(library, tmp_path):
    keras = keras_of(library)

    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0

    model = keras.Sequential([keras.Input([4], name="x"), Doubled(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    # The layer is there with the model: its class is not looked up by its name.
    tfe.model_to_estimator(model, model_dir=tmp_path / "model")
    path = str(tmp_path / "model.keras")
    model.save(path)
    says = r"^(?!keras_model_path)[\s\S]*Doubled[\s\S]*can't load it.*custom_objects="
    with pytest.raises(TypeError, match=says):
        tfe.model_to_estimator(keras_model_path=path, model_dir=tmp_path)
    tfe.model_to_estimator(None, path, {"Doubled": Doubled}, tmp_path / "path")


def _doubled(x):
    return x * 2.0


@pytest.mark.behaviour(432)
def test_functions_and_layers_that_a_config_names_but_keras_does_not_know(tmp_path):
    # Each raises with TensorFlow 2.15.1's tf.keras.estimator.model_to_estimator, and so begins.
    keras = keras_of("tf_keras")

    class Doubled(keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0

    named = {"_doubled": _doubled, "Doubled": Doubled}
    for layer, error, says in (
        (keras.layers.Activation(_doubled), TypeError, r"^Error when deserializing[\s\S]*Unknown"),
        (keras.layers.TimeDistributed(Doubled()), ValueError, r"^Unknown layer: 'Doubled'"),
    ):
        x = keras.Input([4, 2], name="x")
        model = keras.Model(x, keras.Sequential([layer, keras.layers.Dense(1)])(x))
        model.compile("sgd", "mse")
        with pytest.raises(error, match=rf"{says}[\s\S]*'{layer.name}' uses in custom_objects="):
            tfe.model_to_estimator(model, model_dir=tmp_path / "without")
        assert tfe.model_to_estimator(model, None, named, tmp_path / layer.name)


@pytest.mark.behaviour(434)
def test_optimizers_that_cannot_be_made_again(tmp_path):
    keras = keras_of("tf_keras")

    class Twice(keras.optimizers.SGD):
        def __init__(self, must_have):
            super().__init__(0.1)
            self._must_have = must_have

    estimator = tfe.model_to_estimator(models.small(keras, Twice(1)), model_dir=tmp_path)
    with pytest.raises(ValueError, match=r"Twice can't be made from its own config.*custom_objec"):
        estimator.train(models.input_fn(), steps=1)
    sharded = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    estimator = tfe.model_to_estimator(models.small(keras, sharded), model_dir=tmp_path / "2")
    with pytest.raises(ValueError, match=r"compiled with a CrossShardOptimizer.*optimizer inside"):
        estimator.train(models.input_fn(), steps=1)


def test_a_train_step_of_ones_own_is_told_to_be_left_out(tmp_path, caplog):
    keras = keras_of("tf_keras")

    class Own(keras.Model):
        def train_step(self, data):
            raise AssertionError

    x = keras.Input([4], name="x")
    model = Own(x, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    with caplog.at_level("WARNING"):
        tfe.model_to_estimator(model, model_dir=tmp_path)
    assert "train_step of Own is not used" in caplog.text


def test_batch_sizes_and_options_reach_the_tpu_estimator(tmp_path):
    model = models.small(keras_of("tf_keras"))
    with pytest.raises(ValueError, match=r"`train_batch_size` cannot be `None`"):
        tfe.keras_to_estimator(model, config=on_cores.config_for(tmp_path))
    with pytest.raises(ValueError, match=r"reserved keys"):
        tfe.keras_to_estimator(model, model_dir=tmp_path, use_tpu=False, params={"context": 1})
    made = tfe.keras_to_estimator(model, model_dir=tmp_path, use_tpu=False)
    assert isinstance(made, tpu.TPUEstimator)
    assert isinstance(made.config, tpu.RunConfig)
