"""The models, once for all contenders: weights by name, and a function of weights and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks import large_models
from benchmarks.weights import Weight

Tensors = Mapping[str, tf.Tensor]

LEARNING_RATE = 0.001
# Keras's value; that of v1's Adam is another.
ADAM_EPSILON = 1e-7

IDS = {f"id_{size}": size for size in (10, 24, 50, 100, 200, 300, 500, 1000, 2000, 5000)}
NUMBERS = tuple(f"number_{index}" for index in range(10))
EMBEDDING_WIDTH = 16
IMAGE_SIZE = 28
MLP_FEATURES = 32
CLASSES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model without a framework.

    Attributes:
        batch_size: Examples of one step.
        weights: Its variables.
        logits: Computes the logits, [batch, classes], or [batch, 1] for two classes; of a model that
            trains otherwise than it predicts it takes `training` too.
        learning_rate: That of its Adam.
        knows_training: Whether `logits` takes `training`.
    """

    batch_size: int
    weights: tuple[Weight, ...]
    logits: Callable[..., tf.Tensor]
    learning_rate: float = LEARNING_RATE
    knows_training: bool = False

    def logits_of(self, weights: Tensors, features: Any, *, training: bool) -> tf.Tensor:
        """Computes the logits."""
        options = {"training": training} if self.knows_training else {}
        return self.logits(weights, features, **options)

    @property
    def is_binary(self) -> bool:
        return self.weights[-1].shape == (1,)


def mean_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean cross entropy over a batch of labels, int64 [batch] or as many as a row has logits for."""
    if logits.shape[1] == 1:
        targets = tf.cast(labels, tf.float32)[:, tf.newaxis]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def predictions(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """The classes, int64 [batch], and the probabilities, shaped as the logits."""
    if logits.shape[1] == 1:
        return {
            "class_id": tf.cast(logits[:, 0] > 0, tf.int64),
            "probability": tf.sigmoid(logits),
        }
    return {"class_id": tf.argmax(logits, axis=-1), "probability": tf.nn.softmax(logits)}


def mlp_logits(weights: Tensors, features: tf.Tensor) -> tf.Tensor:
    return _layers(weights, features, _MLP_UNITS)


def cnn_logits(weights: Tensors, features: tf.Tensor) -> tf.Tensor:
    images = scale_images(features)
    for name in ("conv_0", "conv_1"):
        images = tf.nn.conv2d(images, weights[f"{name}/kernel"], strides=1, padding="SAME")
        images = tf.nn.relu(tf.nn.bias_add(images, weights[f"{name}/bias"]))
        images = tf.nn.max_pool2d(images, ksize=2, strides=2, padding="VALID")
    flat = tf.reshape(images, [-1, _FLAT])
    return _layers(weights, flat, _CNN_UNITS)


def wide_and_deep_logits(weights: Tensors, features: Tensors) -> tf.Tensor:
    ids = {name: tf.cast(features[name], tf.int32) for name in IDS}
    numbers = tf.stack([features[name] for name in NUMBERS], axis=1)
    wide = _dense(weights, "wide", numbers)
    for name in IDS:
        wide += tf.gather(weights[f"wide/{name}"], ids[name])
    embedded = [tf.gather(weights[f"deep/{name}"], ids[name]) for name in IDS]
    return wide + _layers(weights, tf.concat([*embedded, numbers], axis=1), _DEEP_UNITS)


def scale_images(images: tf.Tensor) -> tf.Tensor:
    """Bytes [batch, size, size, 1] as float32 from 0 to 1."""
    return tf.cast(images, tf.float32) / 255.0


def _dense(weights: Tensors, name: str, inputs: tf.Tensor) -> tf.Tensor:
    return tf.matmul(inputs, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]


def _layers(weights: Tensors, inputs: tf.Tensor, units: Sequence[int]) -> tf.Tensor:
    for layer in range(len(units) - 1):
        inputs = tf.nn.relu(_dense(weights, f"dense_{layer}", inputs))
    return _dense(weights, f"dense_{len(units) - 1}", inputs)


def _layer_weights(name: str, *kernel: int) -> list[Weight]:
    fan_in = 1
    for size in kernel[:-1]:
        fan_in *= size
    return [
        Weight(f"{name}/kernel", kernel, stddev=(2.0 / fan_in) ** 0.5),
        Weight(f"{name}/bias", (kernel[-1],)),
    ]


def _stacked_weights(inputs: int, units: Sequence[int]) -> list[Weight]:
    weights = []
    for layer, (before, after) in enumerate(zip((inputs, *units), units)):
        weights += _layer_weights(f"dense_{layer}", before, after)
    return weights


_MLP_UNITS = (64, 32, CLASSES)
_CNN_FILTERS = (32, 64)
_CNN_UNITS = (128, CLASSES)
_FLAT = (IMAGE_SIZE // 4) ** 2 * _CNN_FILTERS[-1]
_DEEP_UNITS = (64, 32, 1)

MODELS = {
    "mlp": Model(
        batch_size=64,
        weights=tuple(_stacked_weights(MLP_FEATURES, _MLP_UNITS)),
        logits=mlp_logits,
    ),
    "cnn": Model(
        batch_size=128,
        weights=(
            *_layer_weights("conv_0", 3, 3, 1, _CNN_FILTERS[0]),
            *_layer_weights("conv_1", 3, 3, *_CNN_FILTERS),
            *_stacked_weights(_FLAT, _CNN_UNITS),
        ),
        logits=cnn_logits,
    ),
    "wide_and_deep": Model(
        batch_size=512,
        weights=(
            *(Weight(f"wide/{name}", (size, 1)) for name, size in IDS.items()),
            *(
                Weight(f"deep/{name}", (size, EMBEDDING_WIDTH), stddev=EMBEDDING_WIDTH**-0.5)
                for name, size in IDS.items()
            ),
            *_layer_weights("wide", len(NUMBERS), 1),
            *_stacked_weights(len(IDS) * EMBEDDING_WIDTH + len(NUMBERS), _DEEP_UNITS),
        ),
        logits=wide_and_deep_logits,
    ),
    "bert": Model(
        batch_size=8,
        weights=tuple(large_models.bert_weights()),
        logits=large_models.bert_logits,
        learning_rate=1e-4,
        knows_training=True,
    ),
    "resnet": Model(
        batch_size=16,
        weights=tuple(large_models.resnet_weights()),
        logits=large_models.resnet_logits,
        learning_rate=1e-4,
        knows_training=True,
    ),
}
