"""Trains until it is asked to stop: `python -m tests.engine.sessions.stopped_training FOLDER PLACE [HANDLER]`."""

from __future__ import annotations

import signal
import sys
import time

import tensorflow as tf

from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1


def model_fn(features, labels, mode, params):
    del labels, params
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(features - weight))
    optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.01))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


class Ready(v1.train.SessionRunHook):
    """Says when the training is under way."""

    def after_run(self, run_context, run_values):
        print("ready", flush=True)


def input_fn(params):
    rows = (
        tf.data.Dataset.from_tensors(tf.ones([]))
        .repeat()
        .batch(params["batch_size"], drop_remainder=True)
    )
    if "slow" not in sys.argv:
        return rows
    # The first two come at once.
    return rows.take(2).concatenate(rows.map(_late))


def _late(row):
    return tf.ensure_shape(tf.numpy_function(_wait, [row], tf.float32), row.shape)


def _wait(row):
    time.sleep(100)
    return row


def main(folder, place):
    if "own_handler" in sys.argv:
        signal.signal(signal.SIGTERM, lambda number, frame: print("handled", flush=True))
    config = tpu.RunConfig(
        model_dir=folder,
        master="emulated" if place == "cores" else "",
        tpu_config=tpu.TPUConfig(iterations_per_loop=5, num_shards=2),
    )
    estimator = tpu.TPUEstimator(
        model_fn, config=config, use_tpu=place == "cores", train_batch_size=4
    )
    steps = 300 if "own_handler" in sys.argv else 10**9
    estimator.train(input_fn, max_steps=steps, hooks=[Ready()])
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
