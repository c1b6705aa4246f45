"""model_to_estimator."""

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


def _two_outputs() -> Any:
    inputs = tf.keras.Input([1], name="x")
    outputs = [tf.keras.layers.Dense(1, name=name)(inputs) for name in ("y", "z")]
    model = tf.keras.Model(inputs, outputs)
    model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse")
    return model


def _weighted(weights: Callable[[], Any]) -> _Case:
    """Trains a model of two outputs with these sample weights."""

    def case(t: Stack) -> Any:
        def input_fn() -> Any:
            features = {"features": tf.constant(_ONES), "sample_weights": weights()}
            return features, {"y": tf.constant(_ONES), "z": tf.constant(_ONES)}

        return _converted(_two_outputs)(t).train(input_fn, steps=1)

    return case


def _saved(t: Stack) -> Any:
    path = f"{t.folder}/model.h5"
    _model().save(path)
    return _to_estimator(t)(keras_model_path=path, model_dir=t.folder)


def _on_part_of_a_gpu(t: Stack) -> Any:
    session_config = tf.compat.v1.ConfigProto()
    session_config.gpu_options.allow_growth = True
    config = t.est.RunConfig(session_config=session_config)
    return _converted(config=config)(t)


def _called(t: Stack) -> Any:
    """A subclassed model with weights, which can be made from its configuration."""

    class Dense(tf.keras.Model):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self.layer = tf.keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.layer(inputs)

        def get_config(self) -> dict[str, Any]:
            return {}

    model = Dense()
    model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse")
    model(_ONES)
    return _converted(lambda: model, checkpoint_format="saver")(t)


def _exported(shape: Any, checkpoint_format: str) -> _Case:
    """Exports a model of three numbers, whose requests have such a shape."""

    def case(t: Stack) -> Any:
        inputs = tf.keras.Input([3], name="x")
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="y")(inputs))
        model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse")
        estimator = _converted(lambda: model, checkpoint_format=checkpoint_format)(t)

        def receiver_fn() -> Any:
            x = tf.compat.v1.placeholder(tf.float32, shape)
            return t.est.export.ServingInputReceiver({"x": x}, {"x": x})

        return estimator.export_saved_model(f"{t.folder}/export", receiver_fn)

    return case


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
    "export_outputs_unknown": _trained(
        {"x": _ONES}, _ONES, export_outputs={"a": lambda tensor: tensor}
    ),
    "weights_in_a_list": _weighted(lambda: [tf.constant([1.0, 2.0])]),
    "weights_of_another_name": _weighted(lambda: {"a": tf.constant([1.0, 2.0])}),
    "weights_alone": _weighted(lambda: tf.constant([1.0, 2.0])),
    "saved": _saved,
    "on_part_of_a_gpu": _on_part_of_a_gpu,
    "subclassed_and_called": _called,
    "trains": _trained({"x": _ONES}, _ONES),
    "export_of_another_rank": _exported([None, 5, 3], "checkpoint"),
    "export_of_another_rank_by_name": _exported([None, 5, 3], "saver"),
    "export_of_too_low_a_rank": _exported([None], "checkpoint"),
    "export_of_too_low_a_rank_by_name": _exported([None], "saver"),
}
