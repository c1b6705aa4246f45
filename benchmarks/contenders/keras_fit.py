"""Measures Keras `fit`, `evaluate` and `predict`, with Keras's own defaults."""

import importlib
import time
from typing import Any

import tensorflow as tf

from benchmarks import data, keras_models
from benchmarks.models import ADAM_EPSILON, MODELS
from benchmarks.plan import Request


class KerasRunner:
    """See `benchmarks.measure.Runner`."""

    def __init__(self, keras: Any, request: Request, *, steps_per_execution: int) -> None:
        """Builds the models."""
        model = MODELS[request.model]
        self.batch_size = model.batch_size
        self._keras = keras
        self._request = request
        self._steps_per_execution = steps_per_execution
        self._model = keras_models.build(keras, request.model)
        self._predicting = keras_models.predicting(keras, self._model)
        self._loss, self._accuracy = _loss_and_accuracy(keras, is_binary=model.is_binary)
        self._optimizer = keras.optimizers.Adam(model.learning_rate, epsilon=ADAM_EPSILON)
        self._model.compile(self._optimizer, self._loss, steps_per_execution=steps_per_execution)
        self._predicting.compile(steps_per_execution=steps_per_execution)

    def first_steps(self, steps: int) -> float:
        # Keras 3 makes only whole executions.
        executions = -(-steps // self._steps_per_execution)
        steps = executions * self._steps_per_execution
        self._model.fit(self._batches(), steps_per_epoch=steps, verbose=0)
        return time.monotonic()

    def train(self, steps: int, segments: int) -> list[float]:
        seconds, began = [], []
        clock = self._keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: began.append(time.monotonic()),
            on_epoch_end=lambda epoch, logs: seconds.append(time.monotonic() - began[-1]),
        )
        self._model.fit(
            self._batches(), epochs=segments, steps_per_epoch=steps, verbose=0, callbacks=[clock]
        )
        # Training measures no metric, like the other contenders.
        self._model.compile(
            self._optimizer,
            self._loss,
            metrics=[self._accuracy],
            steps_per_execution=self._steps_per_execution,
        )
        return [steps / each for each in seconds[1:]]

    def evaluate(self, batches: int) -> float:
        metrics = self._model.evaluate(self._batches().take(batches), verbose=0, return_dict=True)
        return float(metrics["loss"])

    def predict(self, batches: int) -> int:
        predicted = self._predicting.predict(self._batches().take(batches), verbose=0)
        names, count = tuple(predicted), 0
        for row in range(batches * self.batch_size):
            count += bool({name: predicted[name][row] for name in names})
        return count

    def steps_made(self) -> int:
        return int(self._optimizer.iterations.numpy())

    def _batches(self) -> tf.data.Dataset:
        return data.batches(self._request.model, self._request.data_folder)


def make(request: Request, *, package: str, steps_per_execution: int = 1) -> KerasRunner:
    keras = importlib.import_module(package)
    in_one_call = min(steps_per_execution, request.plan.loop_steps)
    return KerasRunner(keras, request, steps_per_execution=in_one_call)


def _loss_and_accuracy(keras: Any, *, is_binary: bool) -> tuple[Any, Any]:
    if is_binary:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        return loss, keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return loss, keras.metrics.SparseCategoricalAccuracy(name="accuracy")
