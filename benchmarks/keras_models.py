"""The models in Keras, written the way Keras is written; `keras` is Keras 3 or tf_keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks import keras_large_models
from benchmarks.models import (
    EMBEDDING_WIDTH,
    IDS,
    IMAGE_SIZE,
    MLP_FEATURES,
    MODELS,
    NUMBERS,
    predictions,
)
from benchmarks.weights import Weight


def build(keras: Any, name: str) -> Any:
    """Returns the Keras model of the logits, with the initial values that all contenders have."""
    return _BUILDERS[name](keras, {weight.name: weight for weight in MODELS[name].weights})


def predicting(keras: Any, model: Any) -> Any:
    """Returns the model that predicts what the estimators predict, with the same variables."""
    head = keras.layers.Lambda(predictions)
    return keras.Model(model.inputs, head(model.outputs[0]))


def _mlp(keras: Any, weights: dict[str, Weight]) -> Any:
    inputs = keras.layers.Input((MLP_FEATURES,))
    return keras.Model(inputs, _layers(keras, weights, inputs))


def _cnn(keras: Any, weights: dict[str, Weight]) -> Any:
    inputs = keras.layers.Input((IMAGE_SIZE, IMAGE_SIZE, 1), dtype="uint8")
    images = keras.layers.Rescaling(1 / 255)(inputs)
    for name in ("conv_0", "conv_1"):
        kernel = weights[f"{name}/kernel"]
        images = keras.layers.Conv2D(
            kernel.shape[-1],
            kernel.shape[:2],
            padding="same",
            activation="relu",
            kernel_initializer=_initializer(kernel),
        )(images)
        images = keras.layers.MaxPooling2D()(images)
    flat = keras.layers.Flatten()(images)
    return keras.Model(inputs, _layers(keras, weights, flat))


def _wide_and_deep(keras: Any, weights: dict[str, Weight]) -> Any:
    layers = keras.layers
    ids = {name: layers.Input((), dtype="int64", name=name) for name in IDS}
    numbers = {name: layers.Input((), dtype="float32", name=name) for name in NUMBERS}
    columns = [layers.Reshape((1,))(number) for number in numbers.values()]
    stacked = layers.Concatenate()(columns)

    def look_up(name: str, half: str, width: int) -> Any:
        initializer = _initializer(weights[f"{half}/{name}"])
        return layers.Embedding(IDS[name], width, embeddings_initializer=initializer)(ids[name])

    wide = layers.Dense(1, kernel_initializer=_initializer(weights["wide/kernel"]))(stacked)
    wide = layers.Add()([wide, *(look_up(name, "wide", 1) for name in IDS)])
    embedded = [look_up(name, "deep", EMBEDDING_WIDTH) for name in IDS]
    deep = _layers(keras, weights, layers.Concatenate()([*embedded, stacked]))
    return keras.Model({**ids, **numbers}, layers.Add()([wide, deep]))


def _layers(keras: Any, weights: dict[str, Weight], inputs: Any) -> Any:
    kernels = [
        weight for name, weight in weights.items() if name.startswith("dense_") and "kernel" in name
    ]
    for kernel in kernels:
        inputs = keras.layers.Dense(
            kernel.shape[1],
            activation=None if kernel is kernels[-1] else "relu",
            kernel_initializer=_initializer(kernel),
        )(inputs)
    return inputs


def _initializer(weight: Weight) -> Callable[..., tf.Tensor]:
    def initial_value(shape: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
        assert tuple(shape) == weight.shape, (weight, shape)
        return weight.initial_value()

    return initial_value


_BUILDERS = {
    "mlp": _mlp,
    "cnn": _cnn,
    "wide_and_deep": _wide_and_deep,
    "bert": keras_large_models.bert,
    "resnet": keras_large_models.resnet,
}
