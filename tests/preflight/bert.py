"""A BERT-large's training step: 24 layers, masked words, Adam. No published code; only the sizes are BERT's.

python -m tests.preflight.bert                prints the processor seconds and the memory of its preflight
python -m tests.preflight.bert --effort -1    the same with the compiler's least effort
"""

import argparse
import resource
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec
from tfx_tpu_trainer.preflight import CompilerOptions, preflight
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs

v1 = tf.compat.v1

LAYERS, HEADS, WIDTH, WORDS, LENGTH, MASKED = 24, 16, 1024, 30_522, 128, 20
PARAMETERS = (
    (WORDS + LENGTH) * WIDTH
    + 2 * WIDTH
    + LAYERS * (12 * WIDTH * WIDTH + 13 * WIDTH)
    + WIDTH * WIDTH
    + WIDTH
    + WORDS
)


def dense(x: tf.Tensor, width: int, name: str) -> tf.Tensor:
    """A layer with a bias on the last axis, in bfloat16."""
    kernel = v1.get_variable(f"{name}/kernel", [x.shape[-1], width])
    bias = v1.get_variable(f"{name}/bias", [width], initializer=v1.zeros_initializer())
    return tf.einsum("...d,de->...e", x, tf.cast(kernel, x.dtype)) + tf.cast(bias, x.dtype)


def norm(x: tf.Tensor, name: str) -> tf.Tensor:
    """Layer normalization."""
    scale = v1.get_variable(f"{name}/scale", [x.shape[-1]], initializer=v1.ones_initializer())
    shift = v1.get_variable(f"{name}/shift", [x.shape[-1]], initializer=v1.zeros_initializer())
    wide = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)
    return tf.cast((wide - mean) * tf.math.rsqrt(variance + 1e-6) * scale + shift, x.dtype)


def attention(x: tf.Tensor, name: str) -> tf.Tensor:
    """Attention of all words to all."""
    q, k, v = (
        tf.reshape(dense(x, WIDTH, f"{name}/{part}"), [-1, LENGTH, HEADS, WIDTH // HEADS])
        for part in ("query", "key", "value")
    )
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS)
    mixed = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)
    return dense(tf.reshape(mixed, [-1, LENGTH, WIDTH]), WIDTH, f"{name}/output")


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> TPUEstimatorSpec:
    """Predicts the masked words."""
    table = v1.get_variable("words", [WORDS, WIDTH])
    places = v1.get_variable("places", [LENGTH, WIDTH])
    x = tf.cast(tf.gather(table, features["words"]) + places, tf.bfloat16)
    x = norm(x, "embedded")
    for layer in range(LAYERS):
        name = f"layer_{layer}"
        x = norm(x + attention(x, f"{name}/attention"), f"{name}/attention_norm")
        inner = tf.nn.gelu(dense(x, 4 * WIDTH, f"{name}/up"))
        x = norm(x + dense(inner, WIDTH, f"{name}/down"), f"{name}/norm")
    masked = tf.gather(x, features["places"], batch_dims=1)
    masked = tf.nn.gelu(dense(masked, WIDTH, "transform"))
    logits = tf.einsum("bmd,wd->bmw", masked, tf.cast(table, x.dtype))
    logits = tf.cast(logits, tf.float32) + v1.get_variable("bias", [WORDS])
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(1e-4))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn() -> Any:
    """Sentences of words, places of those that are masked, and what they are."""
    of_words, of_masked = tf.TensorSpec([LENGTH], tf.int32), tf.TensorSpec([MASKED], tf.int32)
    return input_fn_of_specs({"words": of_words, "places": of_masked}, of_masked)


def _processor_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tests.preflight.bert")
    parser.add_argument("--rows", type=int, default=8, help="Rows of each of the 8 replicas.")
    parser.add_argument("--effort", type=float, help="See CompilerOptions.")
    given = parser.parse_args()
    started, began = _processor_seconds(), time.monotonic()
    found = preflight(
        model_fn,
        input_fn(),
        tpu="v5e:2x4",
        batch_size=8 * given.rows,
        steps=["train"],
        # Processor seconds are what counts; on a machine that is shared they may take long.
        options=CompilerOptions(timeout_seconds=3000, effort=given.effort),
    )
    peaks = [
        resource.getrusage(who).ru_maxrss / 2**20
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    (train,) = found.steps
    print(
        f"{found.summary()}\n{train.need_bytes:,} bytes: {train.hbm_by_category}\n"
        f"{train.parameter_count:,} parameters ({PARAMETERS:,} by formula), {train.flops / 1e12:.2f} TFLOP\n"
        f"{_processor_seconds() - started:.1f} processor seconds after the "
        f"imports, {time.monotonic() - began:.0f} s in all; at most {peaks[0]:.2f} GiB in this process "
        f"and {peaks[1]:.2f} GiB in the compiler's"
    )
