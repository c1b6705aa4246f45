"""Optimizers: instances, names and functions, of three kinds, in the heads' train ops."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfx_tpu_trainer.estimator import heads
from tfx_tpu_trainer.estimator._modes import on_cores as optimizers_on_cores
from tfx_tpu_trainer.estimator.heads import _training
from tfx_tpu_trainer.estimator.heads import _v1 as v1_heads

v1 = tf.compat.v1
legacy = tf_keras.optimizers.legacy

X = np.array([[1.0], [2.0]], np.float32)
Y = np.array([[3.0], [5.0]], np.float32)


def trained(optimizer: Any, *, head: Any = None, steps: int = 2, **arguments: Any) -> list[float]:
    """Weight, and global step, after some steps of squared error from a weight of 0."""
    head = head or heads.RegressionHead()
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [1, 1], initializer=v1.zeros_initializer())
        if not isinstance(head, v1_heads.RegressionHead):
            arguments.setdefault("trainable_variables", [w])
        spec = head.create_estimator_spec(
            {}, "train", tf.constant(X) @ w, Y, optimizer=optimizer, **arguments
        )
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(spec.train_op)
        return [session.run(w).item(), session.run(step).item()]


def descended(steps: int, rate: float, *, summed: bool = False) -> float:
    w = 0.0
    for _ in range(steps):
        gradients = 2 * X * (X * w - Y)
        w -= rate * float(gradients.sum() if summed else gradients.mean())
    return w


SGD_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "legacy": lambda: legacy.SGD(0.01),
    "name": lambda: "SGD",
    "function": lambda: lambda: legacy.SGD(0.01),
    "todays_keras_2": lambda: tf_keras.optimizers.SGD(0.01),
    "keras_3": lambda: keras.optimizers.SGD(0.01),
    "v1": lambda: v1.train.GradientDescentOptimizer(0.01),
    "v1_function": lambda: lambda: v1.train.GradientDescentOptimizer(0.01),
}


@pytest.mark.parametrize("kind", SGD_OPTIMIZERS)
def test_a_head_trains_with_an_optimizer_and_counts_steps(kind: str) -> None:
    assert trained(SGD_OPTIMIZERS[kind]()) == [pytest.approx(descended(2, 0.01)), 2]


def test_an_optimizer_instance_serves_any_number_of_calls_of_model_fn() -> None:
    optimizer = legacy.Adam(0.1)
    first = trained(optimizer)
    assert trained(optimizer) == first
    assert not optimizer.weights


def test_the_sum_of_losses_is_trained_on_as_it_is() -> None:
    head = heads.RegressionHead(loss_reduction="sum")
    (weight, _) = trained(legacy.SGD(0.01), head=head)
    assert weight == pytest.approx(descended(2, 0.01, summed=True))


def test_a_v1_head_sums_and_runs_the_graphs_updates() -> None:
    head = v1_heads.RegressionHead()
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.get_or_create_global_step()
        w = v1.get_variable("w", [1, 1], initializer=v1.zeros_initializer())
        runs = v1.get_variable("runs", [], initializer=v1.zeros_initializer(), trainable=False)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, runs.assign_add(1.0))
        spec = head.create_estimator_spec(
            {}, "train", tf.constant(X) @ w, Y, v1.train.GradientDescentOptimizer(0.01)
        )
        session.run(v1.global_variables_initializer())
        session.run(spec.train_op)
        assert session.run(w).item() == pytest.approx(descended(1, 0.01, summed=True))
        assert session.run(runs) == 1.0


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"])
def test_names_give_keras_optimizers_with_their_own_rates(name: str) -> None:
    optimizer = _training.optimizer_instance(name)
    assert isinstance(optimizer, legacy.Optimizer)
    assert (
        optimizer.get_config()["learning_rate"] == type(optimizer)().get_config()["learning_rate"]
    )
    assert _training.optimizer_instance(name, 0.5).get_config()["learning_rate"] == 0.5


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"])
def test_names_give_v1_optimizers_with_the_rate_that_is_given(name: str) -> None:
    assert isinstance(_training.v1_optimizer_instance(name, 0.5), v1.train.Optimizer)
    with pytest.raises(ValueError, match="learning_rate must be specified"):
        _training.v1_optimizer_instance(name)


def test_settings_of_todays_keras_optimizers_are_kept() -> None:
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with tf.Graph().as_default():
        adam = _training.optimizer_instance(
            tf_keras.optimizers.Adam(rate, beta_1=0.8, amsgrad=True, clipnorm=2.0)
        )
    config = adam.get_config()
    assert isinstance(adam, legacy.Adam)
    assert (config["beta_1"], config["amsgrad"], adam.clipnorm) == (0.8, True, 2.0)
    assert config["learning_rate"]["config"]["decay_rate"] == 0.5


def test_a_keras_3_schedule_is_kept() -> None:
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with tf.Graph().as_default():
        sgd = _training.optimizer_instance(keras.optimizers.SGD(rate, momentum=0.5))
    assert sgd.get_config()["learning_rate"]["config"]["decay_steps"] == 10
    assert sgd.get_config()["momentum"] == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "Momentum", "Unsupported optimizer name: Momentum"),
        (lambda: 3, "is not a tf.keras.optimizers.Optimizer instance. Given: 3"),
        (lambda: legacy.SGD, "is not a tf.keras.optimizers.Optimizer instance"),
        (lambda: lambda: None, "is not a tf.keras.optimizers.Optimizer instance"),
        (lambda: tf_keras.optimizers.Adam(weight_decay=0.1), r"\{'weight_decay': 0.1\}"),
        (lambda: keras.optimizers.SGD(use_ema=True), r"\{'use_ema': True\}"),
        (lambda: keras.optimizers.Lion(), "has no optimizer of this name"),
        (lambda: lambda: tf_keras.optimizers.SGD(0.1), "legacy.SGD"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_refused(make: Callable[[], Any], message: str) -> None:
    optimizer = make()
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        _training.optimizer_instance(optimizer)


def test_an_optimizer_of_another_graph_is_refused() -> None:
    optimizer = legacy.SGD(0.1)
    with tf.Graph().as_default():
        optimizer.iterations = v1.train.get_or_create_global_step()
    with tf.Graph().as_default(), pytest.raises(ValueError, match="already has variables"):
        _training.optimizer_instance(optimizer)


def test_a_v1_estimators_optimizer_must_be_a_v1_one() -> None:
    with pytest.raises(ValueError, match=r"not an Optimizer instance.*compat.v1.train"):
        _training.v1_optimizer_instance(legacy.SGD(0.1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": None}, "cannot both be None"),
        ({"optimizer": "SGD", "train_op_fn": tf.identity}, "cannot both be set"),
        ({"optimizer": 3}, "^The given optimizer is not a tf.keras.optimizers.Optimizer instance"),
        (
            {"optimizer": v1.train.GradientDescentOptimizer(0.1), "trainable_variables": []},
            "^The given optimizer is not a tf.keras.optimizers.Optimizer instance.*Given: \\[\\]",
        ),
        ({"optimizer": "SGD", "trainable_variables": None}, "trainable_variables cannot be None"),
        ({"optimizer": "SGD", "trainable_variables": "w"}, "list or a tuple. Given type.*str"),
        ({"optimizer": "SGD", "update_ops": tf.no_op}, "update_ops should be a list or a tuple"),
    ],
)
def test_a_train_op_needs_its_parts(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trained(**arguments)


def test_an_optimizer_that_counts_its_own_steps_leaves_the_global_one_to_us() -> None:
    def own_count() -> Any:
        optimizer = legacy.SGD(0.01)
        assert optimizer.iterations is not None
        return optimizer

    assert trained(own_count, steps=3) == [pytest.approx(descended(3, 0.01)), 3]


def test_update_ops_run_with_each_step() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [1, 1], initializer=v1.zeros_initializer())
        runs = v1.get_variable("runs", [], initializer=v1.zeros_initializer())
        spec = heads.RegressionHead().create_estimator_spec(
            {}, "train", tf.constant(X) @ w, Y, "SGD", [w], update_ops=[runs.assign_add(1.0)]
        )
        session.run(v1.global_variables_initializer())
        session.run(spec.train_op)
        assert session.run(runs) == 1.0


@pytest.mark.parametrize("base", [legacy.Optimizer, tf_keras.optimizers.Optimizer])
def test_an_optimizers_own_get_updates_is_the_step(base: type) -> None:
    class Doubling(base):  # type: ignore[misc]
        def get_updates(self, loss, params):
            return [2.0 * loss, params]

        def get_config(self):
            return super().get_config()

    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [1, 1], initializer=v1.zeros_initializer())
        spec = heads.RegressionHead().create_estimator_spec(
            {}, "train", tf.constant(X) @ w, Y, Doubling("mine"), trainable_variables=[w]
        )
        session.run(v1.global_variables_initializer())
        assert session.run(spec.train_op) == pytest.approx(2.0 * (Y**2).mean())


@pytest.mark.parametrize("base", [legacy.Optimizer, tf_keras.optimizers.Optimizer])
def test_an_optimizers_own_get_updates_counts_in_the_global_step(base: type) -> None:
    class Counting(base):  # type: ignore[misc]
        def get_updates(self, loss, params):
            descents = [
                each.assign_sub(0.01 * gradient)
                for each, gradient in zip(params, tf.gradients(loss, params))
            ]
            with tf.control_dependencies(descents):
                return [self.iterations.assign_add(1), params]

        def get_config(self):
            return super().get_config()

    # Made here, and outside of any graph.
    for optimizer in (lambda: Counting("mine"), Counting("mine")):
        assert trained(optimizer, steps=3) == [pytest.approx(descended(3, 0.01)), 3]


def test_an_optimizers_own_get_updates_is_refused_on_cores() -> None:
    class Mine(legacy.SGD):
        def get_updates(self, loss, params):
            return super().get_updates(2.0 * loss, params)

    with optimizers_on_cores(), pytest.raises(ValueError, match="Mine has its own get_updates"):
        trained(Mine(0.01))
    # On a host twice the loss is twice the rate.
    assert trained(Mine(0.01)) == trained(legacy.SGD(0.02))
