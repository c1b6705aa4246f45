"""A linear model with fixed initial values, whose training is known by formula.

Plain TensorFlow 1 style code that runs unchanged on the original's TPUEstimator
(`original_facts.py`) and on ours.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

WEIGHTS = np.array([0.5, -1.0, 2.0], np.float32)
BIAS = np.float32(0.25)
RATE = 0.1
ROWS = 20

Batch = tuple[np.ndarray, np.ndarray]

OPTIMIZERS: dict[str, Callable[[], v1.train.Optimizer]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(RATE),
    "momentum": lambda: v1.train.MomentumOptimizer(RATE, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(RATE),
}


def rows(count: int = ROWS) -> Batch:
    """Features [count, 3] and labels [count], the same ones every time."""
    features = np.random.RandomState(7).uniform(-1, 1, (count, 3)).astype(np.float32)
    noise = np.cos(np.arange(count)).astype(np.float32) / 10
    return features, features @ np.float32([1, 2, 3]) + np.float32(0.5) + noise


def batches(batch_size: int, *, count: int = ROWS, epochs: int = 1) -> list[Batch]:
    """The batches that `input_fn` gives; the last of an input may be short."""
    features, labels = (np.concatenate([part] * epochs) for part in rows(count))
    return [
        (features[start : start + batch_size], labels[start : start + batch_size])
        for start in range(0, len(labels), batch_size)
    ]


def input_fn(params: dict[str, Any], *, count: int = ROWS, epochs: int = 1) -> tf.data.Dataset:
    """A Dataset of ({"x": features}, labels) in batches of params["batch_size"]."""
    features, labels = rows(count)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": features}, labels))
    return dataset.repeat(epochs).batch(params["batch_size"])


def endless_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """The rows again and again."""
    return input_fn(params, epochs=10_000)


def full_batches_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """The rows again and again, in batches whose shape is known."""
    return endless_input_fn(params).unbatch().batch(params["batch_size"], drop_remainder=True)


def metric_fn(labels: tf.Tensor, outputs: tf.Tensor) -> dict[str, Any]:
    """Mean absolute error and mean output."""
    return {
        "mae": v1.metrics.mean_absolute_error(labels, outputs),
        "mean_output": v1.metrics.mean(outputs),
    }


def outputs_of(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """The linear model, with its variables."""
    weights = v1.get_variable("linear/weights", initializer=WEIGHTS)
    bias = v1.get_variable("linear/bias", initializer=BIAS)
    return tf.linalg.matvec(features["x"], weights) + bias


def model_fn_for(tpu: Any, optimizer: str = "sgd", **fields: Any) -> Callable[..., Any]:
    """A model_fn that returns `tpu.TPUEstimatorSpec`.

    Args:
        tpu: The original's `tf.compat.v1.estimator.tpu`, or ours.
        optimizer: A key of `OPTIMIZERS`.
        **fields: More fields of the spec.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        outputs = outputs_of(features)
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs, **features}, **fields)
        loss = tf.reduce_mean(tf.square(outputs - labels))
        train_op = None
        if mode == "train":
            used = OPTIMIZERS[optimizer]()
            if params.get("use_tpu"):
                used = tpu.CrossShardOptimizer(used)
            train_op = used.minimize(loss, v1.train.get_global_step())
        eval_metrics = (metric_fn, [labels, outputs])
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metrics=eval_metrics, **fields
        )

    return model_fn


def output(features: np.ndarray, weights: np.ndarray = WEIGHTS, bias: float = BIAS) -> np.ndarray:
    """What the model gives, by formula."""
    return features @ weights + bias


def loss(batch: Batch, weights: np.ndarray = WEIGHTS, bias: float = BIAS) -> float:
    """The loss of a batch, by formula."""
    features, labels = batch
    return float(np.mean((output(features, weights, bias) - labels) ** 2))


def descend(
    training_batches: Iterable[Batch], weights: np.ndarray = WEIGHTS, bias: float = BIAS
) -> Iterator[tuple[float, np.ndarray, float]]:
    """Gradient descent by formula: the loss before each step, weights and bias after it."""
    for features, labels in training_batches:
        error = output(features, weights, bias) - labels
        batch_loss = float(np.mean(error**2))
        weights = weights - RATE * 2 * features.T @ error / len(labels)
        bias = bias - RATE * 2 * np.mean(error)
        yield batch_loss, weights, bias
