"""A layer of the language models of the published results, at the shapes of one chip.

A whole model of 8 to 256 billion parameters is sharded over the chips of its slice, which is not
what a preflight compiles. Its layers are alike, so one is compiled, with the weights as a chip has
gathered them, and counts once for each layer. Its attention is a kernel of its own on the TPU
(MaxText's `attention=flash`), which XLA does not see: it is added by its operations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder's shape, and how a step shares it among chips.

    Attributes:
        width: Of the embeddings.
        layers: Blocks of attention and MLP.
        heads: Of the queries.
        key_heads: Of keys and values.
        head_size: Columns of a head.
        hidden: Columns of the MLP.
        gated: Whether the MLP has two products in, one of them a gate.
        vocabulary: Tokens.
        length: Tokens of a row.
        rows: Rows of a chip; where `tensor_parallel` chips share a batch, of one of them.
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

        Counted without the half that a causal mask leaves out, as MaxText counted when it
        published.
        """
        return 12.0 * self.tokens * self.length * self.heads * self.head_size * self.layers

    @property
    def model_flops(self) -> float:
        """Operations that the published rates count: 6 a parameter and token, and the attention's."""
        parameters = self.parameters - self.vocabulary * self.width
        return 6.0 * parameters * self.tokens + self.attention_flops


def decoder_layer(shape: Decoder) -> Callable[..., TPUEstimatorSpec]:
    """Returns the model_fn of one layer, in bfloat16, with its share of heads and hidden columns."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
        del labels, params
        shared = shape.tensor_parallel
        heads = shape.heads // shared
        key_heads = max(1, shape.key_heads // shared)
        # Trained, so that the gradient goes on to what is before the layer.
        hidden = features["hidden"] * _weight("before", [shape.width])
        normal = _normalize(hidden)
        query = _product(normal, "query", heads * shape.head_size)
        key = _product(normal, "key", key_heads * shape.head_size)
        value = _product(normal, "value", key_heads * shape.head_size)
        # In the place of the attention's kernel: each of the three has a gradient.
        mixed = query + tf.tile(key * value, [1, 1, heads // key_heads])
        hidden += _product(mixed, "out", shape.width)
        normal = _normalize(hidden)
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


def _normalize(inputs: tf.Tensor) -> tf.Tensor:
    values = tf.cast(inputs, tf.float32)
    squares = tf.reduce_mean(values * values, axis=-1, keepdims=True)
    return tf.cast(values * tf.math.rsqrt(squares + 1e-6), inputs.dtype)
