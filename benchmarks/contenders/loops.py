"""Measures hand-written loops with many steps in one `tf.function`: a training, and its input alone."""

import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from benchmarks import data
from benchmarks.models import ADAM_EPSILON, LEARNING_RATE, MODELS, mean_loss, predictions
from benchmarks.plan import Request


class InputRunner:
    """Draws batches without using them, the upper bound for all contenders. See `benchmarks.measure.Runner`."""

    def __init__(self, request: Request) -> None:
        self.batch_size = MODELS[request.model].batch_size
        self._request = request
        self._drawn = 0

    def first_steps(self, steps: int) -> float:
        self._step(iter(self._batches()), steps)
        return time.monotonic()

    def train(self, steps: int, segments: int) -> list[float]:
        iterator, seconds = iter(self._batches()), []
        for _ in range(segments):
            started = time.monotonic()
            self._segment(iterator, steps)
            seconds.append(time.monotonic() - started)
        return [steps / each for each in seconds[1:]]

    def evaluate(self, batches: int) -> float | None:
        self._step(iter(self._batches()), batches)
        return None

    def predict(self, batches: int) -> int:
        self._step(iter(self._batches()), batches)
        return batches * self.batch_size

    def steps_made(self) -> int:
        return self._drawn

    def _batches(self) -> tf.data.Dataset:
        return data.batches(self._request.model, self._request.data_folder)

    def _segment(self, iterator: Any, steps: int) -> None:
        self._step(iterator, steps)

    def _step(self, iterator: Any, count: int) -> None:
        _draw_some(iterator, tf.constant(count)).numpy()
        self._drawn += count


@tf.function
def _draw_some(iterator: Any, count: tf.Tensor) -> tf.Tensor:
    rows = 0
    for _ in tf.range(count):
        _, labels = next(iterator)
        rows += tf.size(labels)
    return rows


class BareRunner(InputRunner):
    """Trains in a bare loop."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        model = MODELS[request.model]
        self._weights = {w.name: tf.Variable(w.initial_value(), name=w.name) for w in model.weights}
        self._optimizer = tf.compat.v1.train.AdamOptimizer(LEARNING_RATE, epsilon=ADAM_EPSILON)
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._logits = model.logits

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

    def _rows(self, batches: int) -> Iterator[dict[str, Any]]:
        for features, _ in self._batches().take(batches):
            batch = {name: value.numpy() for name, value in self._predict_one(features).items()}
            for row in range(self.batch_size):
                yield {name: values[row] for name, values in batch.items()}

    def _segment(self, iterator: Any, steps: int) -> None:
        for _ in range(steps // self._request.plan.loop_steps):
            self._step(iterator, self._request.plan.loop_steps)

    def _step(self, iterator: Any, count: int) -> None:
        self._train_some(iterator, tf.constant(count)).numpy()

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


def make(request: Request, *, trains: bool = True) -> InputRunner:
    return BareRunner(request) if trains else InputRunner(request)
