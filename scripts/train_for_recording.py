"""Trains 5,000 steps and evaluates on the way, as any program does: see record_terminal.py."""

from __future__ import annotations

import os
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tfx_tpu_trainer import estimator  # noqa: E402
from tfx_tpu_trainer.estimator import tpu  # noqa: E402

STEPS, BATCH, ROWS = 5000, 256, 20_011
CHECKPOINT_STEPS = 1000


def model_fn(features, labels, mode, params):
    hidden = tf.compat.v1.layers.dense(features["x"], 128, activation=tf.nn.relu)
    logits = tf.compat.v1.layers.dense(hidden, 1)[:, 0]
    loss = tf.compat.v1.losses.sigmoid_cross_entropy(labels, logits)
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))
    step = tf.compat.v1.train.get_global_step()
    train_op = tf.compat.v1.train.AdamOptimizer(0.001).minimize(loss, step)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def metric_fn(labels, logits):
    return {"auc": tf.compat.v1.metrics.auc(labels, tf.sigmoid(logits))}


def rows():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, 64)).astype(np.float32)
    labels = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, labels))


def main() -> None:
    trainer = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=tempfile.mkdtemp(), save_checkpoints_steps=CHECKPOINT_STEPS),
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
    )
    estimator.train_and_evaluate(
        trainer,
        estimator.TrainSpec(
            lambda params: rows().shuffle(ROWS, seed=1).repeat().batch(params["batch_size"]),
            max_steps=STEPS,
        ),
        estimator.EvalSpec(
            lambda params: rows().batch(params["batch_size"]), steps=None, throttle_secs=0
        ),
    )


if __name__ == "__main__":
    main()
