"""An estimator of a Keras model computes what Keras computes."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras import models
from tests.estimator.keras.models import keras2_first, keras3_first, keras_of
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

STEPS = 6

OPTIMIZERS = {
    "tf_keras-adam": lambda keras: keras.optimizers.Adam(0.01, clipnorm=1.0),
    "tf_keras-legacy": lambda keras: keras.optimizers.legacy.RMSprop(0.01, momentum=0.5),
    "tf_keras-v1": lambda keras: v1.train.MomentumOptimizer(0.01, 0.9),
    "keras-adamw": lambda keras: keras.optimizers.AdamW(
        0.01, use_ema=True, ema_overwrite_frequency=4
    ),
    "keras-schedule": lambda keras: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9
    ),
}


@mostly_swept("kind", OPTIMIZERS, kept=["keras-adamw"])
@pytest.mark.behaviour(422, 424, 425, 434)
def test_predicts_evaluates_and_trains_as_keras_does(kind, tmp_path):
    keras = keras_of(kind.partition("-")[0])
    model = models.small(keras, OPTIMIZERS[kind](keras))
    trained = models.copy_of(keras, model, OPTIMIZERS[kind](keras))
    features, labels = models.rows()
    with models.left_alone(model):
        estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
        np.testing.assert_allclose(
            models.predicted(estimator), model.predict(features, verbose=0), atol=1e-6
        )
        estimator.train(models.input_fn(epochs=STEPS), steps=STEPS)
        result = estimator.evaluate(models.input_fn())
    models.fit(trained, steps=STEPS)
    expected = trained.evaluate(
        features, labels, batch_size=models.BATCH, verbose=0, return_dict=True
    )
    assert result == pytest.approx({**expected, "global_step": STEPS}, rel=1e-5)
    np.testing.assert_allclose(
        models.predicted(estimator), trained.predict(features, verbose=0), atol=1e-5
    )


@keras3_first
def test_a_step_that_gets_no_batch_is_not_counted(library, tmp_path):
    keras = keras_of(library)
    features, labels = models.rows()

    def two_batches_and_a_late_end():
        for start in (0, models.BATCH):
            taken = slice(start, start + models.BATCH)
            yield {"x": features[taken]}, labels[taken]
        # Time enough for whatever does not wait for the batch.
        time.sleep(0.3)

    def input_fn():
        shapes = ({"x": tf.TensorSpec([models.BATCH, 4])}, tf.TensorSpec([models.BATCH, 1]))
        return tf.data.Dataset.from_generator(two_batches_and_a_late_end, output_signature=shapes)

    model = models.small(keras, "adam")
    with models.left_alone(model):
        estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
        estimator.train(input_fn, steps=50)
    assert checkpoints.global_step_of(tmp_path) == 2


def _subclassed(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(3, activation="relu")
            self.out = keras.layers.Dense(1)

        def call(self, features, training=False):
            hidden = self.hidden(features["x"])
            return self.out(hidden * 2.0 if training else hidden)

    return Net()


@keras3_first
@mostly_swept("built", [True, False], kept=[True])
@pytest.mark.behaviour(420, 421, 424, 435)
def test_a_subclassed_model(library, built, tmp_path):
    # With neither get_config nor from_config; the original wants both, and starts afresh.
    keras = keras_of(library)
    model = _subclassed(keras)
    model.compile("sgd", "mse", metrics=["mae"])
    features, labels = models.rows()
    estimator = None
    if built:
        model({"x": features})
        models.give_values(model)
        estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
        np.testing.assert_allclose(
            models.predicted(estimator, "output_1"), model({"x": features}), atol=1e-6
        )
    estimator = estimator or tfe.model_to_estimator(model, model_dir=tmp_path)
    estimator.train(models.input_fn(epochs=2), steps=1)
    kernel = np.array(model.hidden.kernel)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.square(
                model({"x": features[: models.BATCH]}, training=True) - labels[: models.BATCH]
            )
        )
    (gradient,) = tape.gradient(loss, [model.trainable_variables[0]])
    stepped = tf.train.load_variable(estimator.latest_checkpoint(), _kernel_key(estimator))
    np.testing.assert_allclose(stepped, kernel - 0.01 * gradient, rtol=1e-5)


def _kernel_key(estimator):
    keys = [key for key in estimator.get_variable_names() if key.startswith("hidden/")]
    return next(key for key in keys if "kernel/" in key)


@keras2_first
@pytest.mark.behaviour(424)
def test_a_sequential_model_without_an_input_shape(library, tmp_path):
    keras = keras_of(library)
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(1, name="only")])
    model.compile("sgd", "mse")
    features, labels = models.rows()
    input_fn = models.dataset_fn((features, labels), batch=models.BATCH)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    estimator.train(input_fn, steps=2)
    first = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-0"))
    names = first.get_variable_to_shape_map()
    trained = keras.models.clone_model(model)
    trained.build([None, 4])
    trained.set_weights(
        [
            first.get_tensor(next(name for name in names if f"{value}/." in name))
            for value in ("kernel", "bias")
        ]
    )
    trained.compile("sgd", "mse")
    trained.fit(features[:16], labels[:16], batch_size=8, shuffle=False, verbose=0)
    assert estimator.evaluate(input_fn) == pytest.approx(
        {"loss": trained.evaluate(features, labels, batch_size=8, verbose=0), "global_step": 2},
        rel=1e-5,
    )


def _two_outputs(keras, **compiled):
    left, right = keras.Input([2], name="left"), keras.Input([2], name="right")
    joined = keras.layers.Concatenate()([left, right])
    outputs = [
        keras.layers.Dense(1, name="score")(joined),
        keras.layers.Dense(1, activation="sigmoid", name="yes")(joined),
    ]
    model = keras.Model([left, right], outputs)
    model.compile("sgd", **compiled)
    return models.give_values(model)


_COMPILED = {
    "loss": ["mse", "binary_crossentropy"],
    "loss_weights": [1.0, 0.25],
    "metrics": [["mae"], ["accuracy"]],
    "weighted_metrics": [["mse"], []],
}


def _two_rows():
    features, labels = models.rows()
    yes = (labels > 0).astype("float32")
    weights = np.linspace(0.5, 2.0, models.ROWS).astype("float32")
    return [features[:, :2], features[:, 2:]], [labels, yes], [weights, weights[::-1].copy()]


_NAMED = {
    "list": lambda given, names: tuple(given),
    "dict": lambda given, names: {**dict(zip(names, given)), "more": given[0]},
}


@keras3_first
@mostly_swept("form", _NAMED, kept=["dict"])
@pytest.mark.behaviour(427, 429)
def test_several_inputs_and_outputs(library, form, tmp_path):
    keras = keras_of(library)
    model = _two_outputs(keras, **_COMPILED)
    features, labels, _ = _two_rows()
    given = (
        _NAMED[form](features, ["left", "right"]),
        _NAMED[form](labels, ["score", "yes"]),
    )
    input_fn = models.dataset_fn(given, batch=models.ROWS)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    expected = model.evaluate(features, labels, batch_size=models.ROWS, verbose=0, return_dict=True)
    result = estimator.evaluate(input_fn)
    # What Keras 3 says of each loss is no compiled metric; the original does not report it either.
    names = {"loss", "score_mae", "yes_accuracy", "score_mse"}
    assert set(result) == {*names, "global_step"}
    for name in names:
        assert result[name] == pytest.approx(expected[name], rel=1e-5)
    first = next(estimator.predict(input_fn))
    score, yes = model.predict(features, verbose=0)
    assert first["score"] == pytest.approx(score[0])
    assert first["yes"] == pytest.approx(yes[0])


@keras2_first
@mostly_swept("form", ["one", "list", "dict"], kept=["dict"])
@pytest.mark.behaviour(428)
def test_sample_weights(library, form, tmp_path):
    keras = keras_of(library)
    model = _two_outputs(keras, **_COMPILED)
    features, labels, weights = _two_rows()
    given = {
        "one": weights[0],
        "list": tuple(weights),
        "dict": {"score": weights[0], "yes": weights[1]},
    }[form]
    expected = model.evaluate(
        features,
        labels,
        batch_size=models.ROWS,
        sample_weight=[weights[0]] * 2 if form == "one" else weights,
        verbose=0,
        return_dict=True,
    )
    both = {"features": {"left": features[0], "right": features[1]}, "sample_weights": given}
    input_fn = models.dataset_fn((both, tuple(labels)), batch=models.ROWS)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    result = estimator.evaluate(input_fn)
    for name in ("loss", "score_mae", "score_mse"):
        assert result[name] == pytest.approx(expected[name], rel=1e-5)
    unweighted = model.evaluate(features, labels, batch_size=32, verbose=0, return_dict=True)
    assert result["loss"] != pytest.approx(unweighted["loss"], rel=1e-3)
    if form == "dict":
        estimator.train(input_fn, steps=1)
        assert estimator.get_variable_value("estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE") == 1


@pytest.mark.behaviour(437)
def test_dense_feature_columns(tmp_path):
    keras = keras_of("tf_keras")
    towns = tf.feature_column.categorical_column_with_vocabulary_list("town", ["oslo", "rome"])
    columns = [
        tf.feature_column.numeric_column("age"),
        tf.feature_column.indicator_column(towns),
    ]
    inputs = {
        "age": keras.Input([1], name="age"),
        "town": keras.Input([1], dtype="string", name="town"),
    }
    dense = keras.layers.DenseFeatures(columns)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(dense))
    model.compile("sgd", "mse")
    features = {
        "age": np.float32([[1], [2], [3]]),
        "town": np.array([["rome"], ["oslo"], ["bonn"]]),
    }
    labels = np.float32([[1], [0], [1]])
    input_fn = models.dataset_fn((features, labels), batch=3)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    expected = model.predict(features, verbose=0)
    np.testing.assert_allclose(
        [row["out"] for row in estimator.predict(input_fn)], expected, atol=1e-6
    )
    estimator.train(models.dataset_fn((features, labels), batch=3, epochs=2), steps=2)
    assert estimator.evaluate(input_fn)["loss"] < np.mean((expected - labels) ** 2)


@keras3_first
def test_lookup_lambda_and_dropout_layers_and_losses_of_ones_own(library, tmp_path):
    # None of the functions could be serialized, and no clone is made.
    keras = keras_of(library)
    factor = tf.Variable(3.0)
    town = keras.Input([1], dtype="string", name="town")
    known = keras.layers.StringLookup(vocabulary=["oslo", "rome"])(town)
    number = keras.layers.Embedding(3, 2)(known)
    flat = keras.layers.Flatten()(number)
    scaled = keras.layers.Lambda(lambda x: x * factor, output_shape=lambda shape: shape)(flat)
    kept = keras.layers.Dropout(0.5, seed=1)(scaled)
    model = keras.Model(town, keras.layers.Dense(1, name="out")(kept))
    model.compile(
        "sgd",
        loss=lambda true, given: tf.abs(true - given) * 2.0,
        metrics=[lambda true, given: tf.abs(true - given)],
    )
    features = np.array([["rome"], ["bonn"], ["oslo"]])
    labels = np.float32([[1], [0], [1]])
    input_fn = models.dataset_fn(({"town": features}, labels), batch=3)
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    expected = model.predict(tf.constant(features), verbose=0)
    np.testing.assert_allclose(
        [row["out"] for row in estimator.predict(input_fn)], expected, atol=1e-6
    )
    result = estimator.evaluate(input_fn)
    assert result.pop("loss") == pytest.approx(2 * np.mean(np.abs(labels - expected)), rel=1e-5)
    assert result.pop("global_step") == 0
    assert list(result.values()) == pytest.approx([np.mean(np.abs(labels - expected))], rel=1e-5)
    estimator.train(models.dataset_fn(({"town": features}, labels), batch=3, epochs=3), steps=3)
    assert estimator.evaluate(input_fn)["global_step"] == 3


def _of_two_outputs(keras):
    inputs = [keras.Input([2], name=name) for name in ("first", "second")]
    joined = keras.layers.Concatenate()(inputs)
    outputs = [keras.layers.Dense(1, name=name)(joined) for name in ("sum", "difference")]
    model = keras.Model(inputs, outputs, name="pair")
    model.compile(keras.optimizers.SGD(0.1), loss={"sum": "mse", "difference": "mae"})
    return models.give_values(model)


_FIRST, _SECOND = (np.random.RandomState(n).randn(8, 2).astype("float32") for n in (1, 2))
_SUM, _DIFFERENCE = (
    (_FIRST + _SECOND).sum(1, keepdims=True),
    (_FIRST - _SECOND).sum(1, keepdims=True),
)
_BY_NAME = ({"first": _FIRST, "second": _SECOND}, {"sum": _SUM, "difference": _DIFFERENCE})

ARRAYS = {
    "by name": _BY_NAME,
    "lists": ([_FIRST, _SECOND], [_SUM, _DIFFERENCE]),
    "tuples": ((_FIRST, _SECOND), (_SUM, _DIFFERENCE)),
    "nested lists": tuple(
        {name: array.tolist() for name, array in part.items()} for part in _BY_NAME
    ),
    "mixed": (
        [_FIRST.astype("float64"), _SECOND],
        {"sum": _SUM, "difference": _DIFFERENCE.tolist()},
    ),
}


@mostly_swept("kind", ARRAYS, kept=["by name"])
def test_arrays_are_features_and_labels_by_name_and_by_position(kind, tmp_path):
    keras = keras_of("tf_keras")
    model, trained = _of_two_outputs(keras), _of_two_outputs(keras)
    for _ in range(2):
        trained.train_on_batch([_FIRST, _SECOND], [_SUM, _DIFFERENCE])
    loss = trained.evaluate([_FIRST, _SECOND], [_SUM, _DIFFERENCE], verbose=0, return_dict=True)
    expected = trained.predict([_FIRST, _SECOND], verbose=0)
    given = ARRAYS[kind]
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path)
    estimator.train(lambda: given, steps=2)
    result = estimator.evaluate(lambda: given, steps=1)
    assert result["loss"] == pytest.approx(loss["loss"], rel=1e-5)
    if isinstance(given[0], dict):
        predicted = next(estimator.predict(lambda: given[0], yield_single_examples=False))
        for name, values in zip(("sum", "difference"), expected):
            np.testing.assert_allclose(predicted[name], values, rtol=1e-5)


# Keras 2's WideDeepModel trains each of its two parts with its own optimizer.
_FEW = 3
_OF_TWO_PARTS = {
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


@mostly_swept("kind", _OF_TWO_PARTS, kept=["todays"])
def test_a_wide_deep_model_trains_as_keras_does_and_goes_on_from_a_checkpoint(kind, tmp_path):
    keras = keras_of("tf_keras")
    features, labels = models.rows()
    input_fn = models.dataset_fn(((features, features), labels), batch=models.ROWS, epochs=_FEW)
    estimator = tfe.model_to_estimator(
        _wide_deep(keras, _OF_TWO_PARTS[kind](keras)), model_dir=tmp_path
    )
    estimator.train(input_fn, steps=_FEW - 1)
    estimator.train(input_fn, steps=1)
    result = estimator.evaluate(input_fn, steps=1)
    trained = _wide_deep(keras, _OF_TWO_PARTS[kind](keras))
    for _ in range(_FEW):
        trained.train_on_batch([features, features], labels)
    expected = trained.evaluate(
        [features, features], labels, batch_size=models.ROWS, verbose=0, return_dict=True
    )
    # The original raises the global step once for each optimizer.
    assert result == pytest.approx({**expected, "global_step": _FEW}, rel=1e-5)


def test_several_optimizers_of_a_model_that_does_not_tell_what_each_trains(tmp_path):
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
