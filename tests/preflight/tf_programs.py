"""The programs of `jax_programs.py` in TensorFlow, under the same names."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.preflight._lowering import lower
from tfx_tpu_trainer.preflight._results import LoweredStep
from tfx_tpu_trainer.preflight._step_graph import StepGraph

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, which is lowered without values for its variables.

    Attributes:
        function: Takes its inputs and the values of its variables; returns results and, where there
            are variables, their new values.
        inputs: Shapes of its inputs, those of one replica.
        state: Shapes of its variables.
        dtypes: Of the inputs; float32 where empty.
        replicas: Copies of it.
        cores: TPU devices of a copy.
    """

    function: Callable[..., Any]
    inputs: Sequence[Sequence[int]]
    state: Sequence[Sequence[int]] = ()
    dtypes: Sequence[tf.DType] = ()
    replicas: int = 1
    cores: int = 1

    @property
    def tpu(self) -> str:
        """The slice that it is for."""
        return "v5e:1x1" if self.replicas == self.cores == 1 else "v5e:2x4"

    def lowered(self, name: str) -> LoweredStep:
        """Lowers it."""
        dtypes = self.dtypes or [tf.float32] * len(self.inputs)
        with tf.Graph().as_default() as graph, tf_private.replicas(self.replicas):
            inputs = [v1.placeholder(*each) for each in zip(dtypes, self.inputs)]
            state = [
                v1.get_variable(f"state_{index}", shape, use_resource=True)
                for index, shape in enumerate(self.state)
            ]
            made = self.function(*inputs, *[each.read_value() for each in state])
            results, values = made if state else (made, ())
            updates = [each.assign(value) for each, value in zip(state, values)]
        return lower(
            StepGraph(
                name=name,
                graph_def=graph.as_graph_def(),
                inputs={each.name: tf.TensorSpec(each.shape, each.dtype) for each in inputs},
                outputs=[each.name for each in tf.nest.flatten(results)],
                targets=[each.op.name for each in updates],
                num_replicas=self.replicas,
                num_partitions=self.cores,
            )
        )


def mean_square(x):
    return tf.reduce_mean(tf.square(x))


def layers(weights, x):
    for weight in weights:
        x = tf.nn.relu(x @ weight)
    return x


def normalized(x):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6)


def attention(q, k, v):
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(8)
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)


def matmul(x, w):
    return x @ w


def forward(x, *weights):
    return layers(weights, x)


def train_by_descent(x, *weights):
    gradients = tf.gradients(mean_square(layers(weights, x)), weights)
    return (), [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


def train_by_adam(x, *state):
    weights, first, second = state[:2], state[2:4], state[4:]
    gradients = tf.gradients(mean_square(layers(weights, x)), weights)
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradients)]
    weights = [w - 0.1 * m / (tf.sqrt(v) + 1e-7) for w, m, v in zip(weights, first, second)]
    return (), [*weights, *first, *second]


def train_softmax(x, labels, w):
    logits = tf.nn.log_softmax(x @ w)
    loss = -tf.reduce_mean(tf.reduce_sum(logits * tf.one_hot(labels, 32768), -1))
    return (), [w - 0.1 * tf.gradients(loss, [w])[0]]


def look_up(table, ids):
    return tf.gather(table, ids)


def convolution(x, w):
    return tf.nn.conv2d(x, w, 1, "SAME")


def train_convolution(x, w):
    loss = mean_square(tf.nn.relu(convolution(x, w)))
    return (), [w - 0.1 * tf.gradients(loss, [w])[0]]


def transformer_layer(x, qkv, out, up, down):
    parts = tf.split(tf.einsum("bld,de->ble", normalized(x), qkv), 3, -1)
    q, k, v = (tf.reshape(part, [16, 512, 12, 64]) for part in parts)
    x += tf.einsum("bld,de->ble", tf.reshape(attention(q, k, v), [16, 512, 768]), out)
    hidden = tf.nn.relu(tf.einsum("bld,de->ble", normalized(x), up))
    return x + tf.einsum("bld,de->ble", hidden, down)


def train_transformer_layer(x, *weights):
    gradients = tf.gradients(mean_square(transformer_layer(x, *weights)), weights)
    return (), [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


def loop(x, w):
    _, x = tf.while_loop(lambda i, _: i < 8, lambda i, x: (i + 1, tf.tanh(x @ w)), (0, x))
    return x


def reductions(x):
    return tf.reduce_max(x, 0), tf.reduce_sum(x, 1), tf.reduce_mean(tf.exp(x))


def batched_matmul(x, y):
    return tf.einsum("bij,bjk->bik", x, y)


def transposed(x, y):
    return (x + tf.transpose(y)) * 2, (tf.transpose(x) - y) * 2


def activations_too_large(x, up, down):
    return tf.sort(x @ up, axis=0) @ down


def state_too_large(x, *state):
    return (), [each + tf.reduce_sum(x) for each in state]


def train_on_eight_replicas(x, *weights):
    gradients = tf.gradients(mean_square(layers(weights, x)), weights)
    gradients = [v1.tpu.cross_replica_sum(each / 8) for each in gradients]
    return (), [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


def forward_on_eight_cores(x, up, down):
    hidden = tf.nn.relu(x @ xla_sharding.split(up, 1, 8, use_sharding_op=True))
    return (hidden @ xla_sharding.split(down, 0, 8, use_sharding_op=True),), (up, down)


_LAYER = ((768, 2304), (768, 768), (768, 3072), (3072, 768))

PROGRAMS = {
    "matmul": Program(matmul, [(8192, 4096), (4096, 8192)]),
    "matmul_bfloat16": Program(matmul, [(8192, 4096), (4096, 8192)], dtypes=[tf.bfloat16] * 2),
    "forward": Program(forward, [(16384, 1024), (1024, 4096), (4096, 4096), (4096, 1024)]),
    "train_by_descent": Program(train_by_descent, [(16384, 1024)], [(1024, 4096), (4096, 1024)]),
    "train_by_adam": Program(train_by_adam, [(4096, 2048)], [(2048, 4096), (4096, 2048)] * 3),
    "train_softmax": Program(
        train_softmax, [(8192, 512), (8192,)], [(512, 32768)], [tf.float32, tf.int32]
    ),
    "look_up": Program(look_up, [(1_000_000, 128), (65536,)], dtypes=[tf.float32, tf.int32]),
    "convolution": Program(convolution, [(128, 56, 56, 128), (3, 3, 128, 256)]),
    "train_convolution": Program(train_convolution, [(64, 56, 56, 128)], [(3, 3, 128, 128)]),
    "layer_norm": Program(normalized, [(32768, 4096)]),
    "attention_scores": Program(attention, [(16, 1024, 12, 64)] * 3),
    "transformer_layer": Program(transformer_layer, [(16, 512, 768), *_LAYER]),
    "train_transformer_layer": Program(train_transformer_layer, [(16, 512, 768)], _LAYER),
    "loop": Program(loop, [(16384, 2048), (2048, 2048)]),
    "reductions": Program(reductions, [(8192, 4096)]),
    "batched_matmul": Program(batched_matmul, [(64, 1024, 128), (64, 128, 1024)]),
    "transposed": Program(transposed, [(4096, 8192), (8192, 4096)]),
    "result_too_large": Program(matmul, [(102_400, 1024), (1024, 102_400)]),
    "activations_too_large": Program(
        activations_too_large, [(131_072, 1024), (1024, 65_536), (65_536, 1024)]
    ),
    "state_too_large": Program(state_too_large, [(64, 1024)], [(1_200_000, 1024)] * 4),
    "train_on_eight_replicas": Program(
        train_on_eight_replicas, [(2048, 1024)], [(1024, 4096), (4096, 1024)], replicas=8
    ),
    "forward_on_eight_cores": Program(
        forward_on_eight_cores, [(4096, 2048)], [(2048, 32768), (32768, 2048)], cores=8
    ),
}
"""Name -> program."""
