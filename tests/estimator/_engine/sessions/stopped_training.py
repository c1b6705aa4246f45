"""Trains until a signal stops it: `python -m tests.estimator._engine.sessions.stopped_training FOLDER PLACE [WORD]`."""

import signal
import sys
import time

import tensorflow as tf

from tests.tensorflow_settings import make_logical_devices
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

LONG_LOOP = 10_000


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
    return rows.take(2).concatenate(rows.map(lambda row: _after(row, 100)))


def slow_rows(seconds):
    """Rows of which each batch takes some time."""

    def input_fn(params):
        rows = tf.data.Dataset.range(100).shuffle(100, seed=3).repeat()
        rows = rows.map(lambda row: tf.cast(row, tf.float32) / 100)
        batches = rows.batch(params["batch_size"], drop_remainder=True)
        return batches.map(lambda rows: _after(rows, seconds))

    return input_fn


def _after(row, seconds):
    def wait(row):
        time.sleep(seconds)
        return row

    return tf.ensure_shape(tf.numpy_function(wait, [row], tf.float32), row.shape)


def estimator(folder, place, *, loop=5, **config):
    strategy = None
    if place == "strategy":
        strategy = tf.distribute.MirroredStrategy(
            ["cpu:0", "cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    config = tpu.RunConfig(
        model_dir=str(folder),
        master="emulated" if place == "cores" else "",
        train_distribute=strategy,
        tpu_config=tpu.TPUConfig(iterations_per_loop=loop, num_shards=2),
        **config,
    )
    return tpu.TPUEstimator(model_fn, config=config, use_tpu=place != "host", train_batch_size=4)


def main(folder, place):
    if "own_handler" in sys.argv:
        signal.signal(signal.SIGTERM, lambda number, frame: print("handled", flush=True))
    steps = 300 if "own_handler" in sys.argv else 10**9
    if "long" in sys.argv:
        # As in the tests' own processes: a strategy's input is eager, and its shuffle has this seed too.
        tf.random.set_seed(11)
        make_logical_devices()
        print("ready", flush=True)
        trained = estimator(folder, place, loop=LONG_LOOP, save_input_position=True)
        trained.train(slow_rows(0.01), max_steps=steps)
    else:
        estimator(folder, place).train(input_fn, max_steps=steps, hooks=[Ready()])
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
