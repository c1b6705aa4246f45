"""Models of the size that people train: BERT-base and ResNet-50, in the ops that both TPUEstimators have.

Neither draws random numbers, so that all contenders reach the same loss: BERT has no dropout. Of its two tasks it
learns the masked words; the other one, whether two sentences follow each other, costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from benchmarks.weights import Weight

v1 = tf.compat.v1
Tensors = Mapping[str, tf.Tensor]

VOCABULARY, LENGTH, MASKED = 30_522, 128, 20
WIDTH, HEADS, LAYERS, INNER, STDDEV = 768, 12, 12, 3072, 0.02
NORM_EPSILON = 1e-12

IMAGE_SIZE, CLASSES = 64, 1000
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM = 1.001e-5, 0.99


def bert_weights() -> Iterator[Weight]:
    """Yields the weights of BERT-base with the head of its masked words."""
    for name, size in (("words", VOCABULARY), ("places", LENGTH), ("kinds", 2)):
        yield Weight(name, (size, WIDTH), STDDEV)
    yield from _norm_weights("embedded")
    for layer in range(LAYERS):
        for part in ("query", "key", "value", "attended"):
            yield from _dense_weights(f"layer_{layer}/{part}", WIDTH, WIDTH)
        yield from _norm_weights(f"layer_{layer}/attended")
        yield from _dense_weights(f"layer_{layer}/inner", WIDTH, INNER)
        yield from _dense_weights(f"layer_{layer}/outer", INNER, WIDTH)
        yield from _norm_weights(f"layer_{layer}/outer")
    yield from _dense_weights("head", WIDTH, WIDTH)
    yield from _norm_weights("head")
    yield Weight("head/words", (VOCABULARY,))


def bert_logits(weights: Tensors, features: Tensors, *, training: bool) -> tf.Tensor:
    """Computes the words at the masked places, [batch, masked, vocabulary]."""
    del training
    hidden = tf.gather(weights["words"], features["words"])
    hidden += tf.gather(weights["kinds"], features["kinds"]) + weights["places"]
    hidden = _norm(weights, "embedded", hidden)
    far = (1.0 - tf.cast(features["there"], tf.float32))[:, tf.newaxis, tf.newaxis, :] * -1e9
    for layer in range(LAYERS):
        name = f"layer_{layer}"
        query, key, value = (
            _heads(_dense(weights, f"{name}/{part}", hidden)) for part in ("query", "key", "value")
        )
        scores = tf.matmul(query, key, transpose_b=True) * (WIDTH // HEADS) ** -0.5
        attended = tf.transpose(tf.matmul(tf.nn.softmax(scores + far), value), [0, 2, 1, 3])
        attended = _dense(weights, f"{name}/attended", tf.reshape(attended, [-1, LENGTH, WIDTH]))
        hidden = _norm(weights, f"{name}/attended", hidden + attended)
        inner = tf.nn.gelu(_dense(weights, f"{name}/inner", hidden))
        outer = _dense(weights, f"{name}/outer", inner)
        hidden = _norm(weights, f"{name}/outer", hidden + outer)
    masked = tf.gather(hidden, features["masked"], batch_dims=1)
    masked = _norm(weights, "head", tf.nn.gelu(_dense(weights, "head", masked)))
    return tf.einsum("bmw,vw->bmv", masked, weights["words"]) + weights["head/words"]


def resnet_weights() -> Iterator[Weight]:
    """Yields the weights of ResNet-50."""
    yield from _conv_weights("stem", 7, 3, 64)
    channels = 64
    for name, filters, _ in resnet_blocks():
        if name.endswith("_0"):
            yield from _conv_weights(f"{name}/short", 1, channels, 4 * filters)
        yield from _conv_weights(f"{name}/in", 1, channels, filters)
        yield from _conv_weights(f"{name}/middle", 3, filters, filters)
        yield from _conv_weights(f"{name}/out", 1, filters, 4 * filters)
        channels = 4 * filters
    yield from _dense_weights("classes", channels, CLASSES)


def resnet_blocks() -> Iterator[tuple[str, int, int]]:
    """Yields each block's name, filters and stride."""
    for stage, (blocks, filters) in enumerate(STAGES):
        for block in range(blocks):
            yield f"stage_{stage}_{block}", filters, 2 if stage and not block else 1


def resnet_logits(weights: Tensors, features: tf.Tensor, *, training: bool) -> tf.Tensor:
    """Computes the logits of images, bytes [batch, size, size, 3]."""

    def conv(name: str, images: tf.Tensor, stride: int = 1) -> tf.Tensor:
        images = tf.nn.conv2d(images, weights[f"{name}/kernel"], strides=stride, padding="SAME")
        return _batch_norm(weights, name, images, training=training)

    images = tf.nn.relu(conv("stem", tf.cast(features, tf.float32) / 255.0, 2))
    images = tf.nn.max_pool2d(images, ksize=3, strides=2, padding="SAME")
    for name, _, stride in resnet_blocks():
        short = conv(f"{name}/short", images, stride) if name.endswith("_0") else images
        inner = tf.nn.relu(conv(f"{name}/in", images))
        inner = tf.nn.relu(conv(f"{name}/middle", inner, stride))
        images = tf.nn.relu(short + conv(f"{name}/out", inner))
    return _dense(weights, "classes", tf.reduce_mean(images, [1, 2]))


def _batch_norm(weights: Tensors, name: str, images: tf.Tensor, *, training: bool) -> tf.Tensor:
    moving = [weights[f"{name}/mean"], weights[f"{name}/variance"]]
    given: dict[str, Any] = {} if training else {"mean": moving[0], "variance": moving[1]}
    images, *found = v1.nn.fused_batch_norm(
        images,
        weights[f"{name}/gamma"],
        weights[f"{name}/beta"],
        epsilon=BATCH_NORM_EPSILON,
        is_training=training,
        **given,
    )
    if training:
        for variable, value in zip(moving, found):
            update = variable.assign_sub((1 - BATCH_NORM_MOMENTUM) * (variable - value))
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
    return images


def _heads(hidden: tf.Tensor) -> tf.Tensor:
    split = tf.reshape(hidden, [-1, LENGTH, HEADS, WIDTH // HEADS])
    return tf.transpose(split, [0, 2, 1, 3])


def _norm(weights: Tensors, name: str, hidden: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
    return tf.nn.batch_normalization(
        hidden, mean, variance, weights[f"{name}/beta"], weights[f"{name}/gamma"], NORM_EPSILON
    )


def _dense(weights: Tensors, name: str, inputs: tf.Tensor) -> tf.Tensor:
    return tf.matmul(inputs, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]


def _dense_weights(name: str, inputs: int, outputs: int) -> Iterator[Weight]:
    yield Weight(f"{name}/kernel", (inputs, outputs), STDDEV)
    yield Weight(f"{name}/bias", (outputs,))


def _norm_weights(name: str) -> Iterator[Weight]:
    yield Weight(f"{name}/gamma", (WIDTH,), mean=1.0)
    yield Weight(f"{name}/beta", (WIDTH,))


def _conv_weights(name: str, size: int, inputs: int, outputs: int) -> Iterator[Weight]:
    stddev = (2.0 / (size * size * inputs)) ** 0.5
    yield Weight(f"{name}/kernel", (size, size, inputs, outputs), stddev)
    yield Weight(f"{name}/gamma", (outputs,), mean=1.0)
    yield Weight(f"{name}/beta", (outputs,))
    yield Weight(f"{name}/mean", (outputs,), trainable=False)
    yield Weight(f"{name}/variance", (outputs,), mean=1.0, trainable=False)
