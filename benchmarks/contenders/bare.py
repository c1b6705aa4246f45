"""A loop written by hand: many steps in one `tf.function`, and nothing of a trainer around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from benchmarks import data
from benchmarks.models import ADAM_EPSILON, LEARNING_RATE, MODELS, mean_loss, predictions
from benchmarks.plan import Request


class BareRunner:
    """See `benchmarks.measure.Runner`."""

    def __init__(self, request: Request) -> None:
        model = MODELS[request.model]
        self.batch_size = model.batch_size
        self._request = request
        self._weights = {w.name: tf.Variable(w.initial_value(), name=w.name) for w in model.weights}
        self._optimizer = tf.compat.v1.train.AdamOptimizer(LEARNING_RATE, epsilon=ADAM_EPSILON)
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._logits = model.logits

    def first_steps(self, steps: int) -> float:
        self._train_some(iter(self._batches()), tf.constant(steps)).numpy()
        return time.monotonic()

    def train(self, steps: int, segments: int) -> list[float]:
        iterator, seconds = iter(self._batches()), []
        in_one_call = tf.constant(self._request.plan.loop_steps)
        for _ in range(segments):
            started = time.monotonic()
            for _ in range(steps // self._request.plan.loop_steps):
                self._train_some(iterator, in_one_call).numpy()
            seconds.append(time.monotonic() - started)
        return [steps / each for each in seconds[1:]]

    def evaluate(self, batches: int) -> float:
        iterator = iter(self._batches().take(batches))
        in_one_call = self._request.plan.loop_steps
        loss, correct = 0.0, 0
        for done in range(0, batches, in_one_call):
            count = tf.constant(min(in_one_call, batches - done))
            sums = self._evaluate_some(iterator, count)
            loss, correct = loss + float(sums[0]), correct + int(sums[1])
        return loss / batches

    def predict(self, batches: int) -> int:
        return sum(1 for _ in self._rows(batches))

    def steps_made(self) -> int:
        return int(self._steps)

    def _batches(self) -> tf.data.Dataset:
        return data.batches(self._request.model, self._request.data_folder)

    def _rows(self, batches: int) -> Iterator[dict[str, Any]]:
        for features, _ in self._batches().take(batches):
            batch = {name: value.numpy() for name, value in self._predict_one(features).items()}
            for row in range(self.batch_size):
                yield {name: values[row] for name, values in batch.items()}

    @tf.function
    def _train_some(self, iterator: Any, count: tf.Tensor) -> tf.Tensor:
        loss = 0.0
        for _ in tf.range(count):
            features, labels = next(iterator)
            with tf.GradientTape() as tape:
                loss = mean_loss(self._logits(self._weights, features), labels)
            weights = list(self._weights.values())
            self._optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            self._steps.assign_add(1)
        return loss

    @tf.function
    def _evaluate_some(self, iterator: Any, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss, correct = 0.0, tf.constant(0, tf.int64)
        for _ in tf.range(count):
            features, labels = next(iterator)
            logits = self._logits(self._weights, features)
            loss += mean_loss(logits, labels)
            right = tf.equal(predictions(logits)["class_id"], labels)
            correct += tf.math.count_nonzero(right)
        return loss, correct

    @tf.function
    def _predict_one(self, features: Any) -> dict[str, tf.Tensor]:
        return predictions(self._logits(self._weights, features))


def make(request: Request) -> BareRunner:
    return BareRunner(request)
