"""A user's program, run on its terminal: `python -m tests._support.terminal_program`."""

import tempfile
import time

import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores

v1 = tf.compat.v1


class _Slow(v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        time.sleep(0.05)


def main() -> None:
    """Trains on cores, prints a line, and evaluates."""
    v1.logging.set_verbosity(v1.logging.INFO)
    estimator = on_cores.linear(tempfile.mkdtemp(), cores=2, loop=1)
    estimator.train(on_cores.train_input_fn, hooks=[_Slow()], max_steps=40)
    print("printed by the program")
    estimator.evaluate(linear_model.input_fn)


if __name__ == "__main__":
    main()
