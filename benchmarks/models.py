"""Defines the models once for all contenders: weights by name, and a function of weights and features.

BERT-base and ResNet-50 are of a size that people train, with ops that both TPUEstimators have. Neither draws random
numbers, so all contenders reach the same loss: BERT has no dropout. It learns only the masked words; its other
task, whether two sentences follow each other, costs next to nothing.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
Tensors = Mapping[str, tf.Tensor]

LEARNING_RATE = 0.001
# Keras's value; v1's Adam has a different one.
ADAM_EPSILON = 1e-7

IDS = {f"id_{size}": size for size in (10, 24, 50, 100, 200, 300, 500, 1000, 2000, 5000)}
NUMBERS = tuple(f"number_{index}" for index in range(10))
EMBEDDING_WIDTH = 16
IMAGE_SIZE = 28
MLP_FEATURES = 32
CLASSES = 10

VOCABULARY, LENGTH, MASKED = 30_522, 128, 20
BERT_WIDTH, HEADS, LAYERS, INNER, STDDEV = 768, 12, 12, 3072, 0.02
NORM_EPSILON = 1e-12

RESNET_IMAGE_SIZE, RESNET_CLASSES = 64, 1000
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
BATCH_NORM_EPSILON, BATCH_NORM_MOMENTUM = 1.001e-5, 0.99


@dataclasses.dataclass(frozen=True)
class Weight:
    """A variable of a model."""

    name: str
    shape: tuple[int, ...]
    # Standard deviation of the initial values; 0 makes all of them the mean.
    stddev: float = 0.0
    mean: float = 0.0
    trainable: bool = True

    def initial_value(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """The same values in every process and TensorFlow version, since they depend only on the name."""
        seed = (zlib.crc32(self.name.encode()) & 0x7FFFFFFF, 0)
        return tf.random.stateless_normal(
            self.shape, seed, mean=self.mean, stddev=self.stddev, dtype=dtype
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model independent of any framework."""

    batch_size: int
    weights: tuple[Weight, ...]
    # Computes [batch, classes], or [batch, 1] for two classes; may take `training`.
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
    """The mean cross entropy of a batch of labels, int64 [batch], or one label per logit."""
    if logits.shape[1] == 1:
        targets = tf.cast(labels, tf.float32)[:, tf.newaxis]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def predictions(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """The classes, int64 [batch], and the probabilities, in the logits' shape."""
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
    """Converts bytes [batch, size, size, 1] to float32 from 0 to 1."""
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


def bert_weights() -> Iterator[Weight]:
    """Yields the weights of BERT-base with the head of its masked words."""
    for name, size in (("words", VOCABULARY), ("places", LENGTH), ("kinds", 2)):
        yield Weight(name, (size, BERT_WIDTH), STDDEV)
    yield from _norm_weights("embedded")
    for layer in range(LAYERS):
        for part in ("query", "key", "value", "attended"):
            yield from _dense_weights(f"layer_{layer}/{part}", BERT_WIDTH, BERT_WIDTH)
        yield from _norm_weights(f"layer_{layer}/attended")
        yield from _dense_weights(f"layer_{layer}/inner", BERT_WIDTH, INNER)
        yield from _dense_weights(f"layer_{layer}/outer", INNER, BERT_WIDTH)
        yield from _norm_weights(f"layer_{layer}/outer")
    yield from _dense_weights("head", BERT_WIDTH, BERT_WIDTH)
    yield from _norm_weights("head")
    yield Weight("head/words", (VOCABULARY,))


def bert_logits(weights: Tensors, features: Tensors, *, training: bool) -> tf.Tensor:
    """Computes the masked words' logits, [batch, masked, vocabulary]."""
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
        scores = tf.matmul(query, key, transpose_b=True) * (BERT_WIDTH // HEADS) ** -0.5
        attended = tf.transpose(tf.matmul(tf.nn.softmax(scores + far), value), [0, 2, 1, 3])
        attended = _dense(
            weights, f"{name}/attended", tf.reshape(attended, [-1, LENGTH, BERT_WIDTH])
        )
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
    yield from _dense_weights("classes", channels, RESNET_CLASSES)


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
    split = tf.reshape(hidden, [-1, LENGTH, HEADS, BERT_WIDTH // HEADS])
    return tf.transpose(split, [0, 2, 1, 3])


def _norm(weights: Tensors, name: str, hidden: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(hidden, [-1], keepdims=True)
    return tf.nn.batch_normalization(
        hidden, mean, variance, weights[f"{name}/beta"], weights[f"{name}/gamma"], NORM_EPSILON
    )


def _dense_weights(name: str, inputs: int, outputs: int) -> Iterator[Weight]:
    yield Weight(f"{name}/kernel", (inputs, outputs), STDDEV)
    yield Weight(f"{name}/bias", (outputs,))


def _norm_weights(name: str) -> Iterator[Weight]:
    yield Weight(f"{name}/gamma", (BERT_WIDTH,), mean=1.0)
    yield Weight(f"{name}/beta", (BERT_WIDTH,))


def _conv_weights(name: str, size: int, inputs: int, outputs: int) -> Iterator[Weight]:
    stddev = (2.0 / (size * size * inputs)) ** 0.5
    yield Weight(f"{name}/kernel", (size, size, inputs, outputs), stddev)
    yield Weight(f"{name}/gamma", (outputs,), mean=1.0)
    yield Weight(f"{name}/beta", (outputs,))
    yield Weight(f"{name}/mean", (outputs,), trainable=False)
    yield Weight(f"{name}/variance", (outputs,), mean=1.0, trainable=False)


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
        weights=tuple(bert_weights()),
        logits=bert_logits,
        learning_rate=1e-4,
        knows_training=True,
    ),
    "resnet": Model(
        batch_size=16,
        weights=tuple(resnet_weights()),
        logits=resnet_logits,
        learning_rate=1e-4,
        knows_training=True,
    ),
}


def make_model_fn(model: Model, tpu: Any) -> Callable[..., Any]:
    """Returns the model_fn."""

    def model_fn(features: Any, labels: tf.Tensor, mode: str, params: dict[str, Any]) -> Any:
        weights = {weight.name: _variable(weight) for weight in model.weights}
        logits = model.logits_of(weights, features, training=mode == "train")
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions=predictions(logits))
        loss = mean_loss(logits, labels)
        if mode == "eval":
            classes = predictions(logits)["class_id"]
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(_metrics, [labels, classes]))
        optimizer = v1.train.AdamOptimizer(model.learning_rate, epsilon=ADAM_EPSILON)
        if params["use_tpu"]:
            optimizer = tpu.CrossShardOptimizer(optimizer)
        step = v1.train.get_or_create_global_step()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _variable(weight: Weight) -> tf.Variable:
    def initial_value(*_: Any, **__: Any) -> tf.Tensor:
        return weight.initial_value()

    return v1.get_variable(
        weight.name, weight.shape, initializer=initial_value, trainable=weight.trainable
    )


def _metrics(labels: tf.Tensor, classes: tf.Tensor) -> dict[str, Any]:
    return {"accuracy": v1.metrics.accuracy(labels, classes)}
