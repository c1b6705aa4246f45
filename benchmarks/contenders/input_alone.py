"""Draws the batches and does nothing with them: no contender can be faster than its input."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from benchmarks import data
from benchmarks.models import MODELS
from benchmarks.plan import Request


class InputRunner:
    """See `benchmarks.measure.Runner`; a step is a batch drawn."""

    def __init__(self, request: Request) -> None:
        self.batch_size = MODELS[request.model].batch_size
        self._request = request
        self._drawn = 0

    def first_steps(self, steps: int) -> float:
        self._draw(iter(self._batches()), steps)
        return time.monotonic()

    def train(self, steps: int, segments: int) -> list[float]:
        iterator, seconds = iter(self._batches()), []
        for _ in range(segments):
            started = time.monotonic()
            self._draw(iterator, steps)
            seconds.append(time.monotonic() - started)
        return [steps / each for each in seconds[1:]]

    def evaluate(self, batches: int) -> None:
        self._draw(iter(self._batches()), batches)

    def predict(self, batches: int) -> int:
        self._draw(iter(self._batches()), batches)
        return batches * self.batch_size

    def steps_made(self) -> int:
        return self._drawn

    def _batches(self) -> tf.data.Dataset:
        return data.batches(self._request.model, self._request.data_folder)

    def _draw(self, iterator: Any, count: int) -> None:
        _draw_some(iterator, tf.constant(count)).numpy()
        self._drawn += count


@tf.function
def _draw_some(iterator: Any, count: tf.Tensor) -> tf.Tensor:
    rows = 0
    for _ in tf.range(count):
        _, labels = next(iterator)
        rows += tf.size(labels)
    return rows


def make(request: Request) -> InputRunner:
    return InputRunner(request)
