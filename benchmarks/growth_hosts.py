"""Trains in several processes on this machine, as the hosts of a cluster, for `make growth`."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def train(number: int, folder: Path, *, steps: int) -> list[dict[str, float]]:
    """Trains on several hosts; returns each one's seconds of `"cpu"` and `"wall"`."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("localhost", 0))
        cluster = {"worker": [f"localhost:{each.getsockname()[1]}" for each in sockets]}
    with contextlib.ExitStack() as stack:
        processes = []
        for index in range(number):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            output = stack.enter_context((folder / f"host{index}").open("w+"))
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.growth_hosts", str(folder), str(steps)],
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
                stdout=output,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append((process, output))
        found = []
        for process, output in processes:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
            output.seek(0)
            found.append(json.loads(output.read().splitlines()[-1]))
    return found


def _main(folder: str, steps: int) -> None:
    # Imported here: a strategy connects its processes before anything else runs, and the process that only starts them
    # needs no TensorFlow.
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    from tfx_tpu_trainer import estimator

    v1 = tf.compat.v1

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        hidden = features
        for _ in range(3):
            hidden = v1.layers.dense(hidden, 16, tf.nn.relu)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=v1.layers.dense(hidden, 2)
        )
        loss = tf.reduce_mean(losses)
        optimizer = v1.train.GradientDescentOptimizer(0.001)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> tf.data.Dataset:
        rows, labels = np.ones((64, 16), np.float32), np.ones(64, np.int64)
        return tf.data.Dataset.from_tensors((rows, labels)).repeat()

    config = estimator.RunConfig(model_dir=f"{folder}/model", train_distribute=strategy)
    made = estimator.Estimator(model_fn, config=config)
    cpu, wall = time.process_time(), time.monotonic()
    made.train(input_fn, steps=steps)
    print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
