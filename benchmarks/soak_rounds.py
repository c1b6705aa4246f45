"""Makes the rounds of `make soak`: train, evaluate, predict and export, with the process's size after each."""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.export import build_raw_serving_input_receiver_fn

v1 = tf.compat.v1

_ROWS, _WIDTH, _BATCH, _CORES, _STEPS = 256, 16, 32, 4, 8


def readings() -> dict[str, float]:
    """Reads this process's memory in MiB, threads and file descriptors from the system.

    Nothing is collected or released for it: these are the numbers that `top` shows for a user's process.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "memory": pages * resource.getpagesize() / 2**20,
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def _input_fn(params: dict[str, Any] | None = None) -> tf.data.Dataset:
    del params
    rows = np.random.default_rng(3).normal(size=(_ROWS, _WIDTH)).astype(np.float32)
    labels = (rows.sum(axis=1) > 0).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices(({"x": rows}, labels)).batch(
        _BATCH, drop_remainder=True
    )


def _training_input_fn(params: dict[str, Any] | None = None) -> tf.data.Dataset:
    return _input_fn(params).shuffle(8).repeat().prefetch(2)


def _model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    hidden = v1.layers.batch_normalization(
        v1.layers.dense(features["x"], 32, tf.nn.relu), training=mode == "train"
    )
    logits = v1.layers.dense(hidden, 2)
    spec = tpu.TPUEstimatorSpec if params["on_cores"] else estimator.EstimatorSpec
    if mode == "infer":
        return spec(mode, predictions={"class": tf.argmax(logits, axis=1), "logits": logits})
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == "eval":
        if params["on_cores"]:
            return spec(mode, loss=loss, eval_metrics=(_metrics, [labels, logits]))
        return spec(mode, loss=loss, eval_metric_ops=_metrics(labels, logits))
    optimizer = v1.train.AdamOptimizer(0.001)
    if params["on_cores"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        return spec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def _metrics(labels: tf.Tensor, logits: tf.Tensor) -> dict[str, Any]:
    return {
        "accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, axis=1)),
        "auc": v1.metrics.auc(labels, tf.nn.softmax(logits)[:, 1]),
    }


def _estimator_of(placement: str, folder: Path) -> estimator.Estimator:
    options: dict[str, Any] = {"model_dir": str(folder / "model"), "save_checkpoints_steps": 4}
    params = {"on_cores": placement == "cores"}
    if placement == "cores":
        config = tpu.RunConfig(
            master="emulated",
            tpu_config=tpu.TPUConfig(num_shards=_CORES, iterations_per_loop=4),
            **options,
        )
        return tpu.TPUEstimator(
            _model_fn,
            config=config,
            params=params,
            train_batch_size=_BATCH,
            eval_batch_size=_BATCH,
            predict_batch_size=_BATCH,
        )
    if placement == "strategy":
        options["train_distribute"] = options["eval_distribute"] = tf.distribute.MirroredStrategy(
            ["CPU:0", "CPU:1"]
        )
    return estimator.Estimator(_model_fn, config=estimator.RunConfig(**options), params=params)


def _export(made: estimator.Estimator, folder: Path) -> None:
    receiver_fn = build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, _WIDTH], tf.float32)}, default_batch_size=None
    )
    made.export_saved_model(str(folder / "exports"), receiver_fn)


def make_round(placement: str, folder: Path) -> None:
    """Makes one round with a new estimator in its own folder, like a trial of a search."""
    made = _estimator_of(placement, folder)
    made.train(_training_input_fn, steps=_STEPS)
    made.evaluate(_input_fn)
    list(made.predict(_input_fn))
    # Abandoned in the middle: by closing, and by dropping the reference.
    stopped = made.predict(_input_fn)
    next(stopped)
    stopped.close()
    next(made.predict(_input_fn))
    _export(made, folder)


def main(placement: str, number: int, folder: Path, output: Path) -> None:
    """Makes the rounds, and writes a line of JSON after each."""
    if placement == "strategy":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    with open(output, "a", encoding="utf-8") as lines:
        for count in range(number):
            make_round(placement, folder / str(count))
            lines.write(json.dumps(readings()) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
