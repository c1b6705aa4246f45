"""Small Keras models, of Keras 2 or Keras 3, and rows for them."""

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.sweeps import mostly_swept

ROWS = 32
BATCH = 8

both_keras = pytest.mark.parametrize("library", ["tf_keras", "keras"])


# If both are traced in the same way, one of them is enough for most days.
keras2_first = mostly_swept("library", ["tf_keras", "keras"], kept=["tf_keras"])
keras3_first = mostly_swept("library", ["tf_keras", "keras"], kept=["keras"])


def keras_of(library: str) -> Any:
    """Imports one of the two."""
    return pytest.importorskip(library)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Four numbers, and what to learn from them."""
    features = np.random.RandomState(0).randn(ROWS, 4).astype("float32")
    return features, features.sum(axis=1, keepdims=True)


def give_values(model: Any, seed: int = 1) -> Any:
    """Returns all variables values that no initializer gives, batch norm statistics among them."""
    values = np.random.RandomState(seed)
    model.set_weights([values.uniform(0.2, 0.6, w.shape) for w in model.get_weights()])
    return model


def small(keras: Any, optimizer: Any = "sgd", **compiled: Any) -> Any:
    """A functional model with a batch norm and a regularized layer: x -> out."""
    x = keras.Input([4], name="x")
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2", name="hidden")(x)
    hidden = keras.layers.BatchNormalization(name="norm")(hidden)
    model = keras.Model(x, keras.layers.Dense(1, name="out")(hidden), name="small")
    compiled = {"loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(optimizer, **compiled)
    return give_values(model)


def without_batch_norm(keras: Any, optimizer: Any = "sgd", **compiled: Any) -> Any:
    """The same, but no row looks at the others of its batch."""
    x = keras.Input([4], name="x")
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")(x)
    model = keras.Model(x, keras.layers.Dense(1, name="out")(hidden), name="plain")
    compiled = {"loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(optimizer, **compiled)
    return give_values(model)


def copy_of(keras: Any, model: Any, optimizer: Any = "sgd", **compiled: Any) -> Any:
    """A model of the same values, to be trained by Keras itself.

    Eagerly: AutoGraph takes far longer over the code of Keras 2 than a few steps take.
    """
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    compiled = {"loss": "mse", "metrics": ["mae"], **compiled}
    copied.compile(optimizer, run_eagerly=True, **compiled)
    return copied


def input_fn(*, batch: int = BATCH, epochs: int = 1, labelled: bool = True) -> Any:
    """An input_fn of the rows, in order."""

    def make(params: Any = None) -> tf.data.Dataset:
        features, labels = rows()
        given = ({"x": features}, labels) if labelled else {"x": features}
        dataset = tf.data.Dataset.from_tensor_slices(given).repeat(epochs)
        return dataset.batch((params or {}).get("batch_size", batch), drop_remainder=epochs > 1)

    return make


def dataset_fn(given: Any, *, batch: int, epochs: int = 1) -> Any:
    """An input_fn of other rows: a nested structure of arrays."""

    def make(params: Any = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(given).repeat(epochs)
        return dataset.batch((params or {}).get("batch_size", batch), drop_remainder=epochs > 1)

    return make


def fit(model: Any, *, batch: int = BATCH, steps: int) -> None:
    """Trains a model with Keras on the rows that `input_fn` gives."""
    features, labels = rows()
    for step in range(steps):
        taken = np.arange(step * batch, (step + 1) * batch) % ROWS
        model.train_on_batch(features[taken], labels[taken])


def predicted(estimator: Any, name: str = "out") -> np.ndarray:
    """What an estimator predicts for the rows."""
    found = estimator.predict(input_fn(labelled=False))
    return np.array([row[name] for row in found])


@contextlib.contextmanager
def left_alone(model: Any) -> Any:
    """Checks that a model and its optimizer are after the block what they were before."""

    def state() -> list[np.ndarray]:
        variables = getattr(model.optimizer, "variables", [])
        optimizer = variables() if callable(variables) else variables
        of_metrics = [v for metric in model.metrics for v in metric.variables]
        return [np.array(each) for each in [*model.get_weights(), *optimizer, *of_metrics]]

    before, optimizer, layers = state(), model.optimizer, list(model.layers)
    yield
    after = state()
    assert len(after) >= len(before)
    assert model.optimizer is optimizer
    assert all(now is then for now, then in zip(model.layers, layers))
    for now, then in zip(after, before):
        np.testing.assert_array_equal(now, then)
