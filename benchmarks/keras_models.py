"""Builds the models in idiomatic Keras; `keras` is Keras 3 or tf_keras."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks import models
from benchmarks.models import (
    EMBEDDING_WIDTH,
    IDS,
    IMAGE_SIZE,
    MLP_FEATURES,
    MODELS,
    NUMBERS,
    Weight,
    predictions,
)


def build(keras: Any, name: str) -> Any:
    """Returns the Keras model of the logits, with the initial values that all contenders share."""
    return _BUILDERS[name](keras, {weight.name: weight for weight in MODELS[name].weights})


def predicting(keras: Any, model: Any) -> Any:
    """Returns the model with the estimators' predictions, on the same variables."""
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


def _bert(keras: Any, weights: dict[str, Weight]) -> Any:
    """Builds BERT-base with the head of its masked words."""
    layers = keras.layers

    def embed(name: str, ids: Any) -> Any:
        rows, width = weights[name].shape
        made = layers.Embedding(rows, width, embeddings_initializer=_initializer(weights[name]))
        return made, made(ids)

    def norm(hidden: Any) -> Any:
        return layers.LayerNormalization(epsilon=models.NORM_EPSILON)(hidden)

    class Places(layers.Layer):
        """Adds position embeddings."""

        def build(self, shape: Any) -> None:
            places = weights["places"]
            self.places = self.add_weight(shape=places.shape, initializer=_initializer(places))

        def call(self, hidden: Any) -> Any:
            return hidden + self.places

    inputs = {
        "words": layers.Input((models.LENGTH,), dtype="int32", name="words"),
        "kinds": layers.Input((models.LENGTH,), dtype="int32", name="kinds"),
        "there": layers.Input((models.LENGTH,), dtype="int32", name="there"),
        "masked": layers.Input((models.MASKED,), dtype="int32", name="masked"),
    }
    words, hidden = embed("words", inputs["words"])
    hidden = norm(Places()(hidden + embed("kinds", inputs["kinds"])[1]))
    there = keras.ops.cast(inputs["there"], "bool")[:, None, :]
    for number in range(models.LAYERS):
        name = f"layer_{number}"
        attention = layers.MultiHeadAttention(
            models.HEADS,
            models.BERT_WIDTH // models.HEADS,
            kernel_initializer=keras.initializers.RandomNormal(stddev=models.STDDEV),
        )
        attended = attention(hidden, hidden, attention_mask=there)
        for part, dense in zip(
            ("query", "key", "value", "attended"),
            (
                attention._query_dense,
                attention._key_dense,
                attention._value_dense,
                attention._output_dense,
            ),
        ):
            kernel = weights[f"{name}/{part}/kernel"].initial_value()
            dense.kernel.assign(tf.reshape(kernel, dense.kernel.shape))
        hidden = norm(hidden + attended)
        inner = _large_dense(keras, weights, f"{name}/inner", "gelu")(hidden)
        outer = _large_dense(keras, weights, f"{name}/outer")(inner)
        hidden = norm(hidden + outer)
    masked = keras.ops.take_along_axis(hidden, inputs["masked"][:, :, None], axis=1)
    masked = norm(_large_dense(keras, weights, "head", "gelu")(masked))

    class WordsHead(layers.Layer):
        """The last layer, which reuses the words' embeddings."""

        def build(self, shape: Any) -> None:
            del shape
            self.bias = self.add_weight(shape=(models.VOCABULARY,), initializer="zeros")

        def call(self, hidden: Any) -> Any:
            table = keras.ops.transpose(words.embeddings)
            return keras.ops.matmul(hidden, table) + self.bias

    return keras.Model(inputs, WordsHead()(masked))


def _resnet(keras: Any, weights: dict[str, Weight]) -> Any:
    """Builds ResNet-50."""
    layers = keras.layers

    def conv(name: str, images: Any, stride: int = 1) -> Any:
        kernel = weights[f"{name}/kernel"]
        images = layers.Conv2D(
            kernel.shape[-1],
            kernel.shape[0],
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer=_initializer(kernel),
        )(images)
        return layers.BatchNormalization(
            momentum=models.BATCH_NORM_MOMENTUM, epsilon=models.BATCH_NORM_EPSILON
        )(images)

    inputs = layers.Input((models.RESNET_IMAGE_SIZE, models.RESNET_IMAGE_SIZE, 3), dtype="uint8")
    images = layers.ReLU()(conv("stem", layers.Rescaling(1 / 255)(inputs), 2))
    images = layers.MaxPooling2D(3, 2, padding="same")(images)
    for name, _, stride in models.resnet_blocks():
        short = conv(f"{name}/short", images, stride) if name.endswith("_0") else images
        inner = layers.ReLU()(conv(f"{name}/in", images))
        inner = layers.ReLU()(conv(f"{name}/middle", inner, stride))
        images = layers.ReLU()(layers.Add()([short, conv(f"{name}/out", inner)]))
    pooled = layers.GlobalAveragePooling2D()(images)
    return keras.Model(inputs, _large_dense(keras, weights, "classes")(pooled))


def _large_dense(
    keras: Any, weights: dict[str, Weight], name: str, activation: str | None = None
) -> Any:
    kernel = weights[f"{name}/kernel"]
    return keras.layers.Dense(
        kernel.shape[-1], activation=activation, kernel_initializer=_initializer(kernel)
    )


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
    "bert": _bert,
    "resnet": _resnet,
}
