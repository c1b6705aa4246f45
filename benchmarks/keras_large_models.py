"""BERT-base and ResNet-50 in Keras 3, with the initial values of `large_models`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks import large_models as sizes
from benchmarks.weights import Weight

Weights = dict[str, Weight]


def bert(keras: Any, weights: Weights) -> Any:
    """Builds BERT-base with the head of its masked words."""
    layers = keras.layers

    def embed(name: str, ids: Any) -> Any:
        rows, width = weights[name].shape
        made = layers.Embedding(rows, width, embeddings_initializer=_values(weights[name]))
        return made, made(ids)

    def norm(hidden: Any) -> Any:
        return layers.LayerNormalization(epsilon=sizes.NORM_EPSILON)(hidden)

    class Places(layers.Layer):
        """Adds what each place has learned."""

        def build(self, shape: Any) -> None:
            places = weights["places"]
            self.places = self.add_weight(shape=places.shape, initializer=_values(places))

        def call(self, hidden: Any) -> Any:
            return hidden + self.places

    inputs = {
        "words": layers.Input((sizes.LENGTH,), dtype="int32", name="words"),
        "kinds": layers.Input((sizes.LENGTH,), dtype="int32", name="kinds"),
        "there": layers.Input((sizes.LENGTH,), dtype="int32", name="there"),
        "masked": layers.Input((sizes.MASKED,), dtype="int32", name="masked"),
    }
    words, hidden = embed("words", inputs["words"])
    hidden = norm(Places()(hidden + embed("kinds", inputs["kinds"])[1]))
    there = keras.ops.cast(inputs["there"], "bool")[:, None, :]
    for number in range(sizes.LAYERS):
        name = f"layer_{number}"
        attention = layers.MultiHeadAttention(
            sizes.HEADS,
            sizes.WIDTH // sizes.HEADS,
            kernel_initializer=keras.initializers.RandomNormal(stddev=sizes.STDDEV),
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
        inner = _dense(keras, weights, f"{name}/inner", "gelu")(hidden)
        outer = _dense(keras, weights, f"{name}/outer")(inner)
        hidden = norm(hidden + outer)
    masked = keras.ops.take_along_axis(hidden, inputs["masked"][:, :, None], axis=1)
    masked = norm(_dense(keras, weights, "head", "gelu")(masked))

    class WordsHead(layers.Layer):
        """The words' embeddings once more, as the last layer."""

        def build(self, shape: Any) -> None:
            del shape
            self.bias = self.add_weight(shape=(sizes.VOCABULARY,), initializer="zeros")

        def call(self, hidden: Any) -> Any:
            table = keras.ops.transpose(words.embeddings)
            return keras.ops.matmul(hidden, table) + self.bias

    return keras.Model(inputs, WordsHead()(masked))


def resnet(keras: Any, weights: Weights) -> Any:
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
            kernel_initializer=_values(kernel),
        )(images)
        return layers.BatchNormalization(
            momentum=sizes.BATCH_NORM_MOMENTUM, epsilon=sizes.BATCH_NORM_EPSILON
        )(images)

    inputs = layers.Input((sizes.IMAGE_SIZE, sizes.IMAGE_SIZE, 3), dtype="uint8")
    images = layers.ReLU()(conv("stem", layers.Rescaling(1 / 255)(inputs), 2))
    images = layers.MaxPooling2D(3, 2, padding="same")(images)
    for name, _, stride in sizes.resnet_blocks():
        short = conv(f"{name}/short", images, stride) if name.endswith("_0") else images
        inner = layers.ReLU()(conv(f"{name}/in", images))
        inner = layers.ReLU()(conv(f"{name}/middle", inner, stride))
        images = layers.ReLU()(layers.Add()([short, conv(f"{name}/out", inner)]))
    pooled = layers.GlobalAveragePooling2D()(images)
    return keras.Model(inputs, _dense(keras, weights, "classes")(pooled))


def _dense(keras: Any, weights: Weights, name: str, activation: str | None = None) -> Any:
    kernel = weights[f"{name}/kernel"]
    return keras.layers.Dense(
        kernel.shape[-1], activation=activation, kernel_initializer=_values(kernel)
    )


def _values(weight: Weight) -> Callable[..., tf.Tensor]:
    def initial_value(shape: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
        assert tuple(shape) == weight.shape, (weight, shape)
        return weight.initial_value()

    return initial_value
