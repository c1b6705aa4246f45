"""Trains on an input that stops giving rows: `python -m tests.estimator.stalled_training FOLDER PLACE [goes_on]`."""

import sys
import threading

import tensorflow as tf

from tests.estimator import counting_model
from tfx_tpu_trainer.estimator import tpu

CALM = 23
"""Batches before the input stops."""


def stuck_in_python(params):
    """An input whose generator waits forever, in Python."""

    def generate():
        yield from range(CALM * params["batch_size"])
        if "goes_on" in sys.argv:
            while True:
                yield 0
        threading.Event().wait()

    rows = tf.data.Dataset.from_generator(
        generate, output_signature=tf.TensorSpec((), tf.int64)
    ).map(lambda row: row % counting_model.ROWS)
    return counting_model.with_batches(rows, params)


def stuck_in_tensorflow(params):
    """An input that waits forever in an op that can be cancelled."""

    def wait(row):
        queue = tf.queue.FIFOQueue(1, [tf.int64], shapes=[()])
        with tf.control_dependencies([row]):
            return queue.dequeue()

    rows = tf.data.Dataset.range(CALM * params["batch_size"]).map(
        lambda row: row % counting_model.ROWS
    )
    rows = rows.concatenate(tf.data.Dataset.range(1).map(wait))
    return counting_model.with_batches(rows, params)


def make(folder, place, **config):
    """Returns the estimator of a place: "host", "cores" or "strategy"."""
    options = {}
    if place == "cores":
        config |= {
            "master": "emulated",
            "tpu_config": tpu.TPUConfig(iterations_per_loop=5, num_shards=2),
        }
        options["use_tpu"] = True
    elif place == "strategy":
        config["train_distribute"] = tf.distribute.MirroredStrategy(["/cpu:0"])
    return counting_model.estimator(
        folder, config={"save_input_position": False, **config}, **options
    )


def main(folder, place):
    estimator = make(folder, place, stall_timeout_secs=3)
    estimator.train(stuck_in_python, max_steps=40)
    print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
