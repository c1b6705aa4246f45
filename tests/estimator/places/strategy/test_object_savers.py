"""Object-based checkpoints with Keras optimizers, on cores of an Estimator, and under a strategy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.checkpointing.savers import ObjectScaffold

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1

KERNEL = "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"
MOMENTUM = "model/dense/kernel/.OPTIMIZER_SLOT/optimizer/momentum/.ATTRIBUTES/VARIABLE_VALUE"
STEP = "step/.ATTRIBUTES/VARIABLE_VALUE"
ROWS, LABELS = linear_model.rows()


class Objects:
    """A Keras model and its optimizer, made alike in a graph and eagerly."""

    def __init__(self, step: Any) -> None:
        initial = tf.keras.initializers.Constant(0.5)
        self.model = tf.keras.Sequential()
        self.model.dense = tf.keras.layers.Dense(1, kernel_initializer=initial)
        self.optimizer = tf.keras.optimizers.legacy.SGD(linear_model.RATE, momentum=0.9)
        self.step = step
        self.checkpoint = tf.train.Checkpoint(optimizer=self.optimizer, model=self.model, step=step)

    def outputs(self, rows: Any) -> Any:
        return self.model.dense(rows)[:, 0]

    def descend(self, loss: tf.Tensor) -> Any:
        """One step in a graph; a Keras optimizer counts its own steps."""
        variables = self.model.dense.trainable_variables
        gradients = self.optimizer.get_gradients(loss, variables)
        made = self.optimizer.apply_gradients(zip(gradients, variables))
        return tf.group(made, v1.assign_add(self.step, 1))

    def descend_eagerly(self, steps: int, *, after: int = 0) -> None:
        batches = linear_model.batches(on_cores.BATCH, epochs=9)
        for rows, labels in batches[after : after + steps]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.outputs(rows) - labels))
            variables = self.model.dense.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            self.step.assign_add(1)


def eagerly(path: str | None = None) -> Objects:
    objects = Objects(tf.Variable(0, dtype=tf.int64))
    objects.outputs(ROWS)
    if path is not None:
        objects.checkpoint.restore(path).assert_nontrivial_match()
    return objects


def _model_fn(features, labels, mode, params):
    objects = Objects(v1.train.get_global_step())
    outputs = objects.outputs(features["x"])
    if mode == "infer":
        scaffold = v1.train.Scaffold(saver=objects.checkpoint)
        return tfe.EstimatorSpec(mode, predictions={"y": outputs}, scaffold=scaffold)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    loss = tf.reduce_mean(tf.square(outputs - labels))
    train_op = objects.descend(loss / replicas) if mode == "train" else None
    made_by = ObjectScaffold if params.get("own") else _scaffold_of_the_user
    return tfe.EstimatorSpec(
        mode, loss=loss, train_op=train_op, scaffold=made_by(objects.checkpoint)
    )


def _scaffold_of_the_user(checkpoint: tf.train.Checkpoint) -> v1.train.Scaffold:
    return v1.train.Scaffold(saver=checkpoint)


def _make(folder: Any, place: str) -> Any:
    if place == "strategy":
        strategy = runs.mirrored()
        config = tfe.RunConfig(str(folder), train_distribute=strategy, eval_distribute=strategy)
        return tfe.Estimator(_model_fn, config=config, params={"own": True})
    estimator = tfe.Estimator(_model_fn, str(folder), params={})
    if place == "host":
        return estimator
    return tpu.from_estimator(
        estimator, on_cores.config_for(folder, cores=2), **on_cores.BATCH_SIZES
    )


def _train(estimator: Any, place: str, *, max_steps: int, skip: int = 0) -> None:
    def input_fn(params=None):
        batch = runs.SHARE if place == "strategy" else on_cores.BATCH
        dataset = on_cores.train_input_fn({"batch_size": batch})
        return dataset.skip(skip * on_cores.BATCH // batch)

    if place == "cores":
        estimator.train(lambda params: input_fn(), max_steps=max_steps)
    else:
        estimator.train(lambda: input_fn(), max_steps=max_steps)


def _predicted(estimator: Any, place: str) -> np.ndarray:
    if place == "cores":
        return np.array([row["y"] for row in estimator.predict(linear_model.input_fn)])
    return runs.predicted(estimator)


@runs.cases("place", "cores", "strategy", swept=("host",))
def test_what_is_trained_is_restored_eagerly_and_trained_on_alike(tmp_path, place):
    trained = _make(tmp_path, place)
    _train(trained, place, max_steps=3)
    assert {KERNEL, MOMENTUM, STEP} <= set(trained.get_variable_names())
    path, predicted = trained.latest_checkpoint(), _predicted(trained, place)
    _train(trained, place, max_steps=5, skip=3)

    objects = eagerly(path)
    assert objects.step.numpy() == 3
    np.testing.assert_allclose(objects.outputs(ROWS), predicted, rtol=1e-5)
    # With the optimizer's slots, the next steps are the same as well.
    objects.descend_eagerly(2, after=3)
    np.testing.assert_allclose(objects.outputs(ROWS), _predicted(trained, place), rtol=1e-4)
    # And the numbers are those of the objects trained eagerly from the start.
    fresh = eagerly()
    fresh.descend_eagerly(5)
    np.testing.assert_allclose(fresh.outputs(ROWS), _predicted(trained, place), rtol=1e-4)


@runs.cases("place", "host", swept=("cores", "strategy"))
def test_what_was_trained_eagerly_is_trained_on(tmp_path, place):
    objects = eagerly()
    objects.descend_eagerly(3)
    objects.checkpoint.save(str(tmp_path / "model.ckpt"))
    # Eager layers can't be called any more once Keras 2 has made one in a graph.
    outputs = objects.outputs(ROWS).numpy()
    objects.descend_eagerly(2, after=3)
    outputs_later = objects.outputs(ROWS).numpy()

    trained = _make(tmp_path, place)
    np.testing.assert_allclose(_predicted(trained, place), outputs, rtol=1e-5)
    _train(trained, place, max_steps=5, skip=3)
    np.testing.assert_allclose(_predicted(trained, place), outputs_later, rtol=1e-4)
