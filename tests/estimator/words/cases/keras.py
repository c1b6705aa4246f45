"""model_to_estimator."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.words.stacks import Stack

_Case = Callable[[Stack], Any]


def _to_estimator(t: Stack) -> Any:
    # TensorFlow 2.16 has none in tf.keras.
    if t.est.__name__.startswith("tfx_tpu_trainer"):
        return importlib.import_module(f"{t.est.__name__}.keras").model_to_estimator
    else:
        return tf.keras.estimator.model_to_estimator


def _model(compiled: bool = True, optimizer: Any = None) -> Any:
    inputs = tf.keras.Input([1], name="x")
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="y")(inputs))
    if compiled:
        model.compile(optimizer or tf.keras.optimizers.legacy.SGD(0.1), "mse", metrics=["mae"])
    return model


def _converted(model: Callable[[], Any] = _model, **options: Any) -> _Case:
    def case(t: Stack) -> Any:
        return _to_estimator(t)(keras_model=model(), model_dir=t.folder, **options)

    return case


def _trained(features: Any, labels: Any, **options: Any) -> _Case:
    def case(t: Stack) -> Any:
        data = lambda: tf.data.Dataset.from_tensors((features, labels)).repeat()  # noqa: E731
        return _converted(**options)(t).train(data, steps=1)

    return case


def _evaluated(names: dict[str, str]) -> _Case:
    def case(t: Stack) -> Any:
        rows = ({"x": _ONES}, _ONES)
        data = lambda: tf.data.Dataset.from_tensors(rows).repeat()  # noqa: E731
        estimator = _converted(metric_names_map=names)(t)
        return estimator.evaluate(data, steps=1)

    return case


_ONES = np.ones([2, 1], np.float32)


class _Subclassed(tf.keras.Model):
    def call(self, inputs: Any) -> Any:
        return inputs


def _subclassed() -> Any:
    model = _Subclassed()
    model.compile("sgd", "mse")
    return model


CASES: dict[str, _Case] = {
    "without_model": lambda t: _to_estimator(t)(),
    "model_and_path": lambda t: _to_estimator(t)(keras_model=_model(), keras_model_path="a"),
    "model_not_compiled": _converted(lambda: _model(compiled=False)),
    "checkpoint_format_unknown": _converted(checkpoint_format="a"),
    "model": _converted(),
    "new_optimizer": _converted(lambda: _model(optimizer=tf.keras.optimizers.SGD(0.1))),
    "subclassed": _converted(_subclassed, checkpoint_format="checkpoint"),
    "subclassed_without_config": _converted(_subclassed),
    "features_of_another_name": _trained({"a": _ONES}, _ONES),
    "labels_of_another_name": _trained({"x": _ONES}, {"a": _ONES}),
    "metric_names_unknown": _evaluated({"a": "b"}),
    "metric_names_too_many": _evaluated({"mae": "b", "a": "c"}),
    "trains": _trained({"x": _ONES}, _ONES),
}
