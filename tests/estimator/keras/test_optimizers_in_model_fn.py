"""Keras optimizers that a model_fn uses itself give the variables that they give eagerly."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import tpu

pytestmark = pytest.mark.matrix

v1 = tf.compat.v1
legacy = tf_keras.optimizers.legacy

FIRST = np.float32([0.5, -1.0, 2.0])
Makers = dict[str, Callable[[], Any]]


class LegacyOwnStep(legacy.Optimizer):
    """Overrides what legacy optimizers are made to have overridden."""

    def __init__(self, name="OwnStep", **kwargs):
        super().__init__(name, **kwargs)
        self._set_hyper("learning_rate", 0.3)

    def _create_slots(self, var_list):
        for variable in var_list:
            self.add_slot(variable, "seen")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        seen = self.get_slot(var, "seen").assign_add(tf.abs(grad))
        rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
        return var.assign_sub(rate * grad / (1 + seen))

    def get_config(self):
        return super().get_config()


class LegacyClipped(legacy.SGD):
    def apply_gradients(self, grads_and_vars, name=None, **kwargs):
        pairs = [(tf.clip_by_value(grad, -0.05, 0.05), var) for grad, var in grads_and_vars]
        return super().apply_gradients(pairs, name=name, **kwargs)


class OwnStep(tf_keras.optimizers.Optimizer):
    def __init__(self, name="OwnStep"):
        super().__init__(name)
        self._learning_rate = self._build_learning_rate(0.2)

    def build(self, var_list):
        super().build(var_list)
        if not getattr(self, "_built", False):
            self.seen = [self.add_variable_from_reference(var, "seen") for var in var_list]
            self._built = True

    def update_step(self, gradient, variable):
        seen = self.seen[self._index_dict[self._var_key(variable)]]
        seen.assign_add(tf.abs(gradient))
        variable.assign_sub(self._learning_rate * gradient / (1 + seen))

    def get_config(self):
        return super().get_config()


class ShrinksAfterwards(tf_keras.optimizers.SGD):
    """Clips before and shrinks after what its base does, without a word of their order."""

    def apply_gradients(self, grads_and_vars, **kwargs):
        pairs = [(tf.clip_by_value(grad, -0.05, 0.05), var) for grad, var in grads_and_vars]
        count = super().apply_gradients(pairs, **kwargs)
        for _, var in pairs:
            var.assign(0.9 * var)
        return count


class Keras3Step(keras.optimizers.Optimizer):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * keras.ops.tanh(gradient))


class Keras3Doubled(keras.optimizers.Adam):
    def apply(self, grads, trainable_variables=None):
        return super().apply([2 * grad for grad in grads], trainable_variables)


def _rate(schedules: Any) -> Any:
    return schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)


OPTIMIZERS: Makers = {
    "legacy adam": lambda: legacy.Adam(_rate(tf_keras.optimizers.schedules)),
    "legacy sgd": lambda: legacy.SGD(0.1, momentum=0.9, nesterov=True, decay=0.1),
    "legacy own step": LegacyOwnStep,
    "legacy own apply": lambda: LegacyClipped(0.1),
    "adam": lambda: tf_keras.optimizers.Adam(0.1, amsgrad=True, clipnorm=0.5),
    "adamw": lambda: tf_keras.optimizers.AdamW(_rate(tf_keras.optimizers.schedules)),
    "sgd": lambda: tf_keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "averages": lambda: tf_keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "adafactor": lambda: tf_keras.optimizers.Adafactor(0.1),
    "loss scale": lambda: tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.Adagrad(0.1), dynamic=False, initial_scale=4.0
    ),
    "own step": OwnStep,
    "own apply": lambda: ShrinksAfterwards(0.1),
    "keras 3 adam": lambda: keras.optimizers.Adam(_rate(keras.optimizers.schedules)),
    "keras 3 sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.5),
    "keras 3 accumulates": lambda: keras.optimizers.RMSprop(0.1, gradient_accumulation_steps=2),
    "keras 3 own step": lambda: Keras3Step(learning_rate=0.1),
    "keras 3 own apply": lambda: Keras3Doubled(0.1),
}


def _gradient(features: Any, labels: Any, weights: Any) -> Any:
    errors = tf.linalg.matvec(features, weights) - labels
    return 2 * tf.linalg.matvec(features, errors, transpose_a=True) / len(linear_model.rows(8)[1])


def _input_fn() -> tf.data.Dataset:
    features, labels = linear_model.rows(8)
    return tf.data.Dataset.from_tensors(({"x": features}, labels)).repeat()


@functools.cache
def _trained_eagerly(steps: int, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    features, labels = linear_model.rows(8)
    results = {}
    for key in keys:
        weights, optimizer = tf.Variable(FIRST), OPTIMIZERS[key]()
        for _ in range(steps):
            optimizer.apply_gradients([(_gradient(features, labels, weights), weights)])
        results[key] = weights.numpy()
    return results


def _model_fn_for(spec: Any, optimizers: Makers) -> Callable[..., Any]:
    def model_fn(features, labels, mode, params):
        updates = [v1.train.get_global_step().assign_add(1)]
        for key, make in optimizers.items():
            weights = v1.get_variable(_variable(key), initializer=FIRST)
            gradient = _gradient(features["x"], labels, weights)
            if params.get("use_tpu"):
                gradient = v1.tpu.cross_replica_sum(gradient)
            updates.append(make().apply_gradients([(gradient, weights)]))
        loss = tf.reduce_sum(labels)
        return spec(mode, loss=loss, train_op=tf.group(updates))

    return model_fn


# Of each generation of Keras one with slots, and one that overrides a part of it.
QUICK = (
    *("legacy adam", "legacy own step"),
    *("adam", "averages", "own step", "own apply"),
    *("keras 3 accumulates", "keras 3 adam", "keras 3 own apply"),
)


@mostly_swept(
    ("place", "keys"),
    [("two cores", QUICK), ("two cores", tuple(OPTIMIZERS)), ("host", tuple(OPTIMIZERS))],
    kept=[("two cores", QUICK)],
)
def test_keras_optimizers_of_every_kind_train_as_they_do_eagerly(tmp_path, place, keys):
    optimizers: Makers = {key: OPTIMIZERS[key] for key in keys}
    # Every second one is made outside of model_fn: on the host these, on cores the others.
    for key in sorted(keys)[place == "host" :: 2]:
        optimizers[key] = functools.partial(_given, OPTIMIZERS[key]())
    if place == "host":
        trained = estimator.Estimator(
            _model_fn_for(estimator.EstimatorSpec, optimizers), str(tmp_path), params={}
        )
    else:
        trained = on_cores.make(tmp_path, _model_fn_for(tpu.TPUEstimatorSpec, optimizers))
    input_fn = _input_fn if place == "host" else lambda params: _input_fn()
    trained.train(input_fn, steps=2)
    # The second call goes on from the first one's checkpoint, with the same instances.
    trained.train(input_fn, steps=2)
    expected = _trained_eagerly(4, keys)
    values = {key: trained.get_variable_value(_variable(key)) for key in expected}
    for key in expected:
        np.testing.assert_allclose(values[key], expected[key], rtol=2e-5, err_msg=key)


class OwnUpdates(legacy.SGD):
    def get_updates(self, loss, params):
        gradients = self.get_gradients(loss, params)
        return [self.apply_gradients([(0.5 * g, w) for g, w in zip(gradients, params)])]


class OwnLoss(legacy.SGD):
    def minimize(self, loss, var_list, **kwargs):
        return super().minimize(lambda: 3.0 * loss(), var_list, **kwargs)


class OwnLossToday(tf_keras.optimizers.SGD):
    def minimize(self, loss, var_list, tape=None):
        return super().minimize(lambda: 3.0 * loss(), var_list, tape)


# How a step is made of an optimizer -> what a gradient is multiplied by.
STEPS_OF_THEIR_OWN: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "get_updates": (lambda w, loss: legacy.SGD(0.1).get_updates(loss(), [w]), 1.0),
    "own get_updates": (lambda w, loss: OwnUpdates(0.1).get_updates(loss(), [w]), 0.5),
    "minimize": (lambda w, loss: tf_keras.optimizers.SGD(0.1).minimize(loss, [w]), 1.0),
    "own minimize": (lambda w, loss: OwnLoss(0.1).minimize(loss, [w]), 3.0),
    "own minimize today": (lambda w, loss: OwnLossToday(0.1).minimize(loss, [w]), 3.0),
}


def test_steps_that_optimizers_make_of_a_loss(tmp_path):
    def model_fn(features, labels, mode):
        updates = [v1.train.get_global_step().assign_add(1)]
        for key, (step, _) in STEPS_OF_THEIR_OWN.items():
            weights = v1.get_variable(_variable(key), initializer=FIRST)
            updates.append(step(weights, lambda w=weights: tf.reduce_sum(w * w)))
        return estimator.EstimatorSpec(mode, loss=tf.reduce_sum(labels), train_op=tf.group(updates))

    trained = estimator.Estimator(model_fn, str(tmp_path))
    trained.train(_input_fn, steps=3)
    for key, (_, factor) in STEPS_OF_THEIR_OWN.items():
        # The gradient of the sum of squares is 2 w.
        expected = FIRST * (1 - 0.1 * 2 * factor) ** 3
        values = trained.get_variable_value(_variable(key))
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=key)


def _given(optimizer: Any) -> Any:
    return optimizer


def _variable(key: str) -> str:
    return f"of_{key.replace(' ', '_')}"
