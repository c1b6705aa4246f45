"""Object-based checkpoints, through `Scaffold(saver=tf.train.Checkpoint(...))`."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator.each_place import estimator, in_every_mode, on_cores_mostly, on_host_mostly
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator import export, tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

ROWS, _ = linear_model.rows()
KERNEL = "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"


def _linear() -> tf.keras.Model:
    """A Keras model of one layer, with known first values.

    Keras 2 makes its classes ones of graphs or of eager mode with each new layer, so models of
    the two can't be used in turns.
    """

    class Linear(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            initial = tf.keras.initializers.Constant(0.5)
            self.dense = tf.keras.layers.Dense(1, kernel_initializer=initial)

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return self.dense(x)[:, 0]

    return Linear()


def _objects(model: tf.keras.Model, optimizer: Any = None, step: Any = None) -> tf.train.Checkpoint:
    optional = {} if optimizer is None else {"optimizer": optimizer}
    step = v1.train.get_global_step() if step is None else step
    return tf.train.Checkpoint(step=step, model=model, **optional)


def _model_fn(features, labels, mode, params):
    model, optimizer = _linear(), None
    outputs = model(features["x"])
    loss = None if mode == "infer" else tf.reduce_mean(tf.square(outputs - labels))
    train_op = None
    if mode == "train":
        optimizer = v1.train.AdamOptimizer(0.1)
        used = v1.tpu.CrossShardOptimizer(optimizer) if params["use_tpu"] else optimizer
        train_op = used.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        predictions={"y": outputs},
        scaffold_fn=lambda: v1.train.Scaffold(saver=_objects(model, optimizer)),
    )


def _predicted(trained: tpu.TPUEstimator) -> np.ndarray:
    return np.array([row["y"] for row in trained.predict(linear_model.input_fn)])


@on_cores_mostly
def test_train_evaluate_predict_and_export(tmp_path, place):
    trained = estimator(tmp_path, place, _model_fn)
    trained.train(on_cores.train_input_fn, steps=3)
    assert KERNEL in trained.get_variable_names()
    assert "optimizer/beta1_power/.ATTRIBUTES/VARIABLE_VALUE" in trained.get_variable_names()
    again = estimator(tmp_path, place, _model_fn)
    again.train(on_cores.train_input_fn, max_steps=5)
    assert on_cores.checkpoint_steps(tmp_path) == [0, 3, 5]

    metrics = again.evaluate(linear_model.input_fn)
    assert metrics["global_step"] == 5
    predicted = _predicted(again)
    features, labels = linear_model.rows()
    np.testing.assert_allclose(
        predicted, features @ again.get_variable_value(KERNEL)[:, 0] + _bias(again), rtol=1e-5
    )
    by_rows = again.evaluate_result(linear_model.input_fn).loss_by_rows
    assert by_rows == pytest.approx(np.mean((predicted - labels) ** 2), rel=1e-5)

    def receiver_fn():
        x = v1.placeholder(tf.float32, [None, 3])
        return export.ServingInputReceiver({"x": x}, {"x": x})

    path = again.export_saved_model(str(tmp_path / "export"), receiver_fn).decode()
    served = tf.saved_model.load(path, tags=["serve"]).signatures["serving_default"]
    np.testing.assert_allclose(served(x=tf.constant(features))["y"], predicted, rtol=1e-5)


def _bias(trained: tpu.TPUEstimator) -> np.ndarray:
    return trained.get_variable_value(KERNEL.replace("kernel", "bias"))


@on_host_mostly
@pytest.mark.behaviour(160)
def test_max_steps_counts_from_an_object_based_checkpoint(tmp_path, place):
    trained = estimator(tmp_path, place, _model_fn)
    trained.train(on_cores.train_input_fn, steps=3)

    def never(params):
        raise AssertionError

    trained.train(never, max_steps=3)


@on_cores_mostly
@pytest.mark.behaviour(275)
def test_keep_checkpoint_max_counts(tmp_path, place):
    options = {"config": {"keep_checkpoint_max": 2, "save_checkpoints_steps": 2}}
    trained = estimator(tmp_path, place, _model_fn, **options)
    trained.train(on_cores.train_input_fn, steps=8)
    assert on_cores.checkpoint_steps(tmp_path) == [6, 8]


@in_every_mode
@pytest.mark.behaviour(280)
def test_what_objects_lack_is_listed(tmp_path, place, mode):
    on_cores.run(estimator(tmp_path, place), "train")
    says = rf"Missing in the checkpoint: .*'{KERNEL}' float32 \[3, 1\]"
    with pytest.raises(tf.errors.NotFoundError, match=says):
        on_cores.run(estimator(tmp_path, place, _model_fn), mode)


@row(
    "checkpoints",
    "an object-based checkpoint for a model that goes by names",
    "is object-based",
    "Give its Scaffold",
)
def test_a_name_based_model_is_told_what_it_needs_for_an_object_based_checkpoint(tmp_path, refused):
    estimator(tmp_path, "host", _model_fn).train(on_cores.train_input_fn, steps=3)

    def by_name(features, labels, mode, params):
        return _model_fn(features, labels, mode, params)._replace(scaffold_fn=None)

    named = estimator(tmp_path, "host", by_name)
    with refused(ValueError):
        named.evaluate(linear_model.input_fn)
