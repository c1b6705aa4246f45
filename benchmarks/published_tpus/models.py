"""Generates the published results' models: their steps compile, and no data is read.

Image models are complete. A language model of 8 to 256 billion parameters is sharded over the chips of its slice, which
a preflight can't compile. Since its layers are alike, one layer is compiled at the shapes of one chip, with the weights
as a chip has gathered them, and counts once for each layer. Its attention is a separate kernel on the TPU (MaxText's
`attention=flash`), which XLA does not see, so its operations are added.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec

v1 = tf.compat.v1

_CLASSES = 1000
_MOMENTUM = 0.9

# Blocks of each of the four groups, as in ResNet-RS (arXiv 2103.07579, appendix).
RESNET_BLOCKS: Mapping[int, tuple[int, int, int, int]] = {
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    270: (4, 29, 53, 4),
    350: (4, 36, 72, 4),
    420: (4, 44, 87, 4),
}


def resnet(*, rs: bool) -> Callable[..., TPUEstimatorSpec]:
    """Returns a ResNet-50's model_fn, with a name scope for each block."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
        del params
        with v1.tpu.bfloat16_scope():
            hidden = _stem(tf.cast(features["image"], tf.bfloat16), rs=rs)
            for group, blocks in enumerate(RESNET_BLOCKS[50]):
                for block in range(blocks):
                    with v1.name_scope(f"group_{group}_{'first' if not block else 'other'}"):
                        strides = 2 if group and not block else 1
                        filters = 64 * 2**group
                        hidden = _bottleneck(hidden, filters, strides, projects=not block, rs=rs)
            pooled = tf.cast(tf.reduce_mean(hidden, axis=[1, 2]), tf.bfloat16)
            logits = _dense(pooled, _CLASSES)
        return _trained(tf.cast(logits, tf.float32), labels, mode)

    return model_fn


def _stem(image: tf.Tensor, *, rs: bool) -> tf.Tensor:
    if not rs:
        hidden = tf.nn.relu(_convolve(image, 64, 7, 2))
        return tf.nn.max_pool2d(hidden, 3, 2, "SAME")
    for filters, strides in ((32, 2), (32, 1), (64, 1), (64, 2)):
        image = tf.nn.relu(_convolve(image, filters, 3, strides))
    return image


def vision_transformer(*, width: int, layers: int, heads: int, patch: int) -> Callable[..., Any]:
    """Returns the model_fn of a ViT that pools the mean of its patches, as in arXiv 2205.01580."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
        del params
        with v1.tpu.bfloat16_scope():
            image = tf.cast(features["image"], tf.bfloat16)
            hidden = _weighted(image, [patch, patch, 3, width], strides=patch)
            rows, height, columns, _ = hidden.shape
            hidden = tf.reshape(hidden, [rows, height * columns, width])
            for _ in range(layers):
                hidden += _attention(_normalize(hidden), heads)
                inner = tf.nn.gelu(_dense(_normalize(hidden), 4 * width))
                hidden += _dense(inner, width)
            logits = _dense(tf.reduce_mean(_normalize(hidden), axis=1), _CLASSES)
        return _trained(tf.cast(logits, tf.float32), labels, mode)

    return model_fn


def _trained(logits: tf.Tensor, labels: tf.Tensor, mode: str) -> TPUEstimatorSpec:
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = CrossShardOptimizer(v1.train.MomentumOptimizer(0.1, _MOMENTUM))
    return TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step())
    )


def _bottleneck(
    inputs: tf.Tensor, filters: int, strides: int, *, projects: bool, rs: bool
) -> tf.Tensor:
    shortcut = inputs
    if projects and rs:
        if strides == 2:
            shortcut = tf.nn.avg_pool2d(shortcut, 2, 2, "SAME")
        shortcut = _convolve(shortcut, 4 * filters, 1, 1)
    elif projects:
        shortcut = _convolve(shortcut, 4 * filters, 1, strides)
    hidden = tf.nn.relu(_convolve(inputs, filters, 1, 1))
    hidden = tf.nn.relu(_convolve(hidden, filters, 3, strides))
    hidden = _convolve(hidden, 4 * filters, 1, 1)
    if not rs:
        return tf.nn.relu(hidden + shortcut)
    squeezed = tf.reduce_mean(hidden, axis=[1, 2])
    gate = tf.sigmoid(_dense(tf.nn.relu(_dense(squeezed, filters)), 4 * filters))
    return tf.nn.relu(hidden * gate[:, None, None, :] + shortcut)


def _convolve(inputs: tf.Tensor, filters: int, size: int, strides: int) -> tf.Tensor:
    """Returns a convolution with batch normalization."""
    made = _weighted(inputs, [size, size, inputs.shape[-1], filters], strides=strides)
    with v1.variable_scope(None, "normalization"):
        scale = v1.get_variable("scale", [filters], initializer=v1.ones_initializer())
        offset = v1.get_variable("offset", [filters], initializer=v1.zeros_initializer())
    values, mean, variance, *_ = v1.nn.fused_batch_norm(made, scale, offset)
    del mean, variance
    return values


def _weighted(inputs: tf.Tensor, shape: list[int], *, strides: int) -> tf.Tensor:
    with v1.variable_scope(None, "convolution"):
        kernel = v1.get_variable("kernel", shape)
    return tf.nn.conv2d(inputs, tf.cast(kernel, inputs.dtype), strides, "SAME")


def _dense(inputs: tf.Tensor, units: int) -> tf.Tensor:
    with v1.variable_scope(None, "dense"):
        kernel = tf.cast(v1.get_variable("kernel", [inputs.shape[-1], units]), inputs.dtype)
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
    return tf.tensordot(inputs, kernel, 1) + tf.cast(bias, inputs.dtype)


def _normalize(inputs: tf.Tensor) -> tf.Tensor:
    """Applies layer normalization, computed in float32."""
    with v1.variable_scope(None, "normalization"):
        scale = v1.get_variable("scale", [inputs.shape[-1]], initializer=v1.ones_initializer())
        offset = v1.get_variable("offset", [inputs.shape[-1]], initializer=v1.zeros_initializer())
    values = tf.cast(inputs, tf.float32)
    mean, variance = tf.nn.moments(values, [-1], keepdims=True)
    values = (values - mean) * tf.math.rsqrt(variance + 1e-6) * scale + offset
    return tf.cast(values, inputs.dtype)


def _attention(inputs: tf.Tensor, heads: int) -> tf.Tensor:
    width = inputs.shape[-1]
    query, key, value = (
        tf.reshape(_dense(inputs, width), [*inputs.shape[:2], heads, width // heads])
        for _ in range(3)
    )
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) / (width // heads) ** 0.5
    weights = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), inputs.dtype)
    mixed = tf.einsum("bhqk,bkhd->bqhd", weights, value)
    return _dense(tf.reshape(mixed, inputs.shape), width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder's shape, and how a step shares it among chips.

    Attributes:
        width: Width of the embeddings.
        layers: Blocks of attention and MLP.
        heads: Heads of the queries.
        key_heads: Heads of keys and values.
        head_size: Columns of a head.
        hidden: Columns of the MLP.
        gated: Whether the MLP begins with two products, one of them a gate.
        vocabulary: Tokens.
        length: Tokens of a row.
        rows: Rows of a chip; if `tensor_parallel` chips share a batch, rows of one of them.
        tensor_parallel: Chips that share heads and hidden columns among them.
        recomputed: Share of the forward pass's products that the backward pass computes again.
        recomputes_attention: Whether it runs the attention's kernel again.
    """

    width: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    hidden: int
    gated: bool = True
    vocabulary: int = 32_000
    length: int
    rows: int
    tensor_parallel: int = 1
    recomputed: float
    recomputes_attention: bool

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer."""
        attention = self.width * self.head_size * (2 * self.heads + 2 * self.key_heads)
        return attention + (3 if self.gated else 2) * self.width * self.hidden

    @property
    def parameters(self) -> int:
        """Weights of the model, with the embeddings and the products that give the logits."""
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.width

    @property
    def tokens(self) -> int:
        """Tokens of a chip in a step."""
        return self.rows * self.length

    @property
    def attention_flops(self) -> float:
        """Operations of the attention's products in one step of one chip, forward and backward.

        Counted without the half that a causal mask excludes, like MaxText's published numbers.
        """
        return 12.0 * self.tokens * self.length * self.heads * self.head_size * self.layers

    @property
    def model_flops(self) -> float:
        """Operations that the published rates count: 6 per parameter and token, and the attention's."""
        parameters = self.parameters - self.vocabulary * self.width
        return 6.0 * parameters * self.tokens + self.attention_flops


def decoder_layer(shape: Decoder) -> Callable[..., TPUEstimatorSpec]:
    """Returns the model_fn of one layer, in bfloat16, with its share of heads and hidden columns."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
        del labels, params
        shared = shape.tensor_parallel
        heads = shape.heads // shared
        key_heads = max(1, shape.key_heads // shared)
        # Trained, so the gradient continues to what precedes the layer.
        hidden = features["hidden"] * _weight("before", [shape.width])
        normal = _rms_normalize(hidden)
        query = _product(normal, "query", heads * shape.head_size)
        key = _product(normal, "key", key_heads * shape.head_size)
        value = _product(normal, "value", key_heads * shape.head_size)
        # In place of the attention's kernel; each of the three has a gradient.
        mixed = query + tf.tile(key * value, [1, 1, heads // key_heads])
        hidden += _product(mixed, "out", shape.width)
        normal = _rms_normalize(hidden)
        inner = tf.nn.silu(_product(normal, "first", shape.hidden // shared))
        if shape.gated:
            inner *= _product(normal, "gate", shape.hidden // shared)
        hidden += _product(inner, "last", shape.width)
        loss = tf.reduce_sum(tf.cast(hidden, tf.float32))
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.01))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _weight(name: str, shape: list[int]) -> tf.Tensor:
    return v1.get_variable(name, shape, tf.bfloat16, v1.zeros_initializer())


def _product(inputs: tf.Tensor, name: str, columns: int) -> tf.Tensor:
    return tf.einsum("blw,wc->blc", inputs, _weight(name, [inputs.shape[-1], columns]))


def _rms_normalize(inputs: tf.Tensor) -> tf.Tensor:
    values = tf.cast(inputs, tf.float32)
    squares = tf.reduce_mean(values * values, axis=-1, keepdims=True)
    return tf.cast(values * tf.math.rsqrt(squares + 1e-6), inputs.dtype)
