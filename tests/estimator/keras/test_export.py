"""Exports of Keras models."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.estimator.keras import models
from tests.estimator.keras.models import keras2_first, keras3_first, keras_of
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1


def _receiver_fn():
    x = v1.placeholder(tf.float32, [None, 4], name="x")
    return tfe.export.ServingInputReceiver({"x": x}, {"x": x})


def _served(path, signature="serving_default"):
    loaded = tf.saved_model.load(path.decode(), tags=["serve"])
    return {
        name: value.numpy()
        for name, value in loaded.signatures[signature](x=tf.constant(models.rows()[0])).items()
    }


@pytest.mark.parametrize("checkpoint_format", ["checkpoint", "saver"])
def test_a_request_may_have_another_rank_as_far_as_the_layers_take_it(checkpoint_format, tmp_path):
    keras = keras_of("tf_keras")
    inputs = keras.Input([4], name="x")
    model = keras.Model(inputs, keras.layers.Dense(2, name="out")(inputs), name="flat")
    model.compile("sgd", "mse")
    parts = set(vars(model))
    estimator = tfe.model_to_estimator(
        model, model_dir=tmp_path / "model", checkpoint_format=checkpoint_format
    )

    def exported(shape):
        def receiver_fn():
            x = v1.placeholder(tf.float32, shape, name="x")
            return tfe.export.ServingInputReceiver({"x": x}, {"x": x})

        return estimator.export_saved_model(str(tmp_path / "export"), receiver_fn)

    loaded = tf.saved_model.load(exported([None, 3, 4]).decode(), tags=["serve"])
    x = np.random.default_rng(0).normal(size=[5, 3, 4]).astype(np.float32)
    kernel, bias = model.get_weights()
    served = loaded.signatures["serving_default"](x=tf.constant(x))["out"]
    np.testing.assert_allclose(served, x @ kernel + bias, atol=1e-5)
    # What TensorFlow 2.15's estimator says; ours goes on.
    with pytest.raises(
        ValueError,
        match=r'^Input 0 of layer "out" is incompatible with the layer: expected min_ndim=2, found '
        r"ndim=1\. Full shape received: \(None,\)[\s\S]*model 'flat' .*of shape \(None, 4\)\.$",
    ):
        exported([None])
    assert set(vars(model)) <= parts


def _two_outputs(keras):
    x = keras.Input([4], name="x")
    model = keras.Model(
        x,
        {
            "score": keras.layers.Dense(1, name="score")(x),
            "kinds": keras.layers.Dense(3, activation="softmax", name="kinds")(x),
        },
    )
    losses = {"score": "mse", "kinds": "sparse_categorical_crossentropy"}
    model.compile("sgd", losses)
    return models.give_values(model)


@keras2_first
@pytest.mark.behaviour(423, 430)
def test_an_output_of_its_own_kind(library, tmp_path):
    # Before any training: the values are those of the model.
    model = _two_outputs(keras_of(library))
    outputs = {"score": tfe.export.RegressionOutput, "kinds": tfe.export.PredictOutput}
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path / "model", export_outputs=outputs)
    path = estimator.export_saved_model(str(tmp_path / "export"), _receiver_fn)
    expected = model.predict(models.rows()[0], verbose=0)
    served = _served(path)
    assert set(served) == {"score", "kinds"}
    np.testing.assert_allclose(served["score"], expected["score"], atol=1e-6)
    # A regression takes serialized examples, which this receiver does not: it is left out.
    (only,) = _served(path, "kinds").values()
    np.testing.assert_allclose(only, expected["kinds"], atol=1e-6)


@pytest.mark.behaviour(430)
def test_an_output_that_there_is_not(tmp_path):
    model = models.small(keras_of("tf_keras"))
    outputs = {"score": tfe.export.RegressionOutput}
    estimator = tfe.model_to_estimator(model, model_dir=tmp_path, export_outputs=outputs)
    with pytest.raises(
        KeyError, match=r"^The list passed into \['out'\] [\s\S]*Missed keys: \['score'\]"
    ):
        estimator.export_saved_model(str(tmp_path / "export"), _receiver_fn)


@keras3_first
def test_an_export_for_tpus(library, tmp_path):
    model = models.small(keras_of(library))
    estimator = tfe.keras_to_estimator(
        model, config=on_cores.config_for(tmp_path / "model"), train_batch_size=8
    )
    estimator.train(models.input_fn(epochs=2), steps=2)
    path = estimator.export_saved_model(str(tmp_path / "export"), _receiver_fn).decode()
    tags = [set(graph.meta_info_def.tags) for graph in _meta_graphs(path)]
    assert tags == [{"serve"}, {"serve", "tpu"}]
    on_host = tfe.model_to_estimator(model, model_dir=tmp_path / "model")
    np.testing.assert_allclose(_served(path.encode())["out"], models.predicted(on_host), atol=1e-6)


def _meta_graphs(path):
    saved = tf.io.gfile.GFile(f"{path}/saved_model.pb", "rb").read()
    return saved_model_pb2.SavedModel.FromString(saved).meta_graphs


@keras2_first
def test_an_export_of_the_graphs_of_training_and_evaluation(library, tmp_path):
    estimator = tfe.model_to_estimator(
        models.small(keras_of(library)), model_dir=tmp_path / "model"
    )
    estimator.train(models.input_fn(), steps=1)

    def supervised():
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = v1.placeholder(tf.float32, [None, 1], name="y")
        return tfe.export.build_raw_supervised_input_receiver_fn({"x": x}, {"out": y})()

    path = estimator.experimental_export_all_saved_models(
        str(tmp_path / "export"), {"infer": _receiver_fn, "eval": supervised, "train": supervised}
    )
    loaded = tf.saved_model.load(path.decode(), tags=["eval"])
    features, labels = models.rows()
    outputs = loaded.signatures["eval"](x=tf.constant(features), out=tf.constant(labels))
    expected = estimator.evaluate(models.input_fn(batch=models.ROWS))
    assert float(outputs["loss"]) == pytest.approx(expected["loss"], rel=1e-5)
