"""Measures one point of one axis, in its own process, for `make growth`."""

import contextlib
import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import growth_hosts
from benchmarks.measure import peak_memory_mb
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.export import build_raw_serving_input_receiver_fn

v1 = tf.compat.v1

_WIDTH, _BATCH, _STEPS = 16, 256, 10
_HIDDEN_LAYERS = 3
# Batches of a sliced evaluation, the same for any number of slices.
_SLICED_BATCHES = 400
_SAVED_MIB = 64
_SAVES = 6
# An encoded image's size; a file's records; what one read of a file takes.
_RECORD_BYTES, _FILE_MIB, _PIECE_BYTES = 1 << 17, 256, 1 << 20
_RECORDS_IN_BATCH = 64


class Clock:
    """Reads the processors and the wall clock around calls.

    Attributes:
        calls: By the call's name, the seconds of `"cpu"` (all threads and processes that it waited
            for) and of `"wall"`.
    """

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, float]] = {}

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Measures the block."""
        # With TFX imported, collecting the whole heap takes 0.4 s, in any call.
        gc.collect()
        cpu, wall = _processor_seconds(), time.monotonic()
        yield
        self.calls[name] = {"cpu": _processor_seconds() - cpu, "wall": time.monotonic() - wall}


def _processor_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _rows(number: int, folder: Path, clock: Clock) -> None:
    """Evaluates many rows."""
    made = _estimator(folder, layers=_HIDDEN_LAYERS)
    made.train(_input_fn, steps=1)
    with clock.call("evaluate"):
        made.evaluate(lambda: _input_fn().take(number // _BATCH))


def _predictions(number: int, folder: Path, clock: Clock) -> None:
    """Predicts many rows, one by one."""
    made = _estimator(folder, layers=_HIDDEN_LAYERS)
    made.train(_input_fn, steps=1)
    with clock.call("predict"):
        for _ in made.predict(lambda: _input_fn().take(number // _BATCH)):
            pass


def _variables(number: int, folder: Path, clock: Clock) -> None:
    """Trains a model with many variables side by side."""
    _make_calls(_estimator(folder, variables=number), folder, clock)


def _layers(number: int, folder: Path, clock: Clock) -> None:
    """Trains a model with many consecutive layers."""
    _make_calls(_estimator(folder, layers=number), folder, clock)


def _cores(number: int, folder: Path, clock: Clock) -> None:
    """Trains a batch on many emulated cores."""
    config = tpu.RunConfig(
        model_dir=str(folder / "model"),
        master="emulated",
        tpu_config=tpu.TPUConfig(num_shards=number, iterations_per_loop=_STEPS),
    )
    made = tpu.TPUEstimator(
        _model_fn,
        config=config,
        params={"layers": _HIDDEN_LAYERS, "variables": 0},
        train_batch_size=_BATCH,
        eval_batch_size=_BATCH,
        predict_batch_size=_BATCH,
    )
    _make_calls(made, folder, clock)


def _slices(number: int, folder: Path, clock: Clock) -> None:
    """Evaluates many slices, found in the rows."""
    import tensorflow_model_analysis as tfma

    from tfx_tpu_trainer.components.trainer.slicing import Slicing

    def input_fn(params: Any = None) -> tf.data.Dataset:
        def with_id(index: tf.Tensor, batch: Any) -> Any:
            features, labels = batch
            rows = index * _BATCH + tf.range(_BATCH, dtype=tf.int64)
            return {**features, "id": rows % max(1, number)}, labels

        return tf.data.Dataset.zip(tf.data.Dataset.range(_SLICED_BATCHES), _input_fn(params)).map(
            with_id
        )

    slicing = Slicing((), ())
    with clock.call("find slices"):
        if number:
            spec = tfma.SlicingSpec(feature_keys=["id"])
            slicing = Slicing.find([spec], input_fn, max_slices=number, label_key=None)
    assert len(slicing.names) == number
    made = tpu.TPUEstimator(
        slicing.model_fn(_model_fn),
        config=tpu.RunConfig(model_dir=str(folder / "model")),
        params={"layers": _HIDDEN_LAYERS, "variables": 0},
        use_tpu=False,
        train_batch_size=_BATCH,
        eval_batch_size=_BATCH,
    )
    made.train(_input_fn, steps=1)
    sliced_input = slicing.input_fn(input_fn)
    with clock.call("build"):
        made.evaluate(sliced_input, steps=1)
    with clock.call("evaluate"):
        made.evaluate(sliced_input)


def _checkpoint(mib: int, folder: Path, clock: Clock) -> None:
    """Saves checkpoints of many bytes, alternating with plain files of the same size."""
    saved = max(1, mib // _SAVED_MIB)
    turns = _SavesAndWrites(folder / "bytes", writes=saved)
    made = _estimator(folder, saved=saved, save_checkpoints_steps=1, keep_checkpoint_max=1)
    # One at the start and one after each step.
    made.train(_input_fn, steps=_SAVES - 1, saving_listeners=[turns])
    clock.calls.update(turns.medians())
    with clock.call("restore"):
        made.evaluate(_input_fn, steps=1)


class _SavesAndWrites(v1.train.CheckpointSaverListener):
    """Measures each save and, before it, a plain file of the same size, each until it is on disk.

    Writes that the system keeps in memory cost up to five times as much in one turn as in the next, depending on
    whether it finds memory at once; the disk evens that out.
    """

    def __init__(self, file: Path, *, writes: int) -> None:
        self._file = file
        self._writes = writes
        self._bytes = np.ones(_SAVED_MIB << 18, np.float32)
        self._turns: list[Clock] = []
        self._saving = contextlib.ExitStack()

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        turn = Clock()
        with turn.call("write"), open(self._file, "wb", buffering=0) as file:
            for _ in range(self._writes):
                view = memoryview(self._bytes).cast("B")
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
        self._file.unlink()
        self._turns.append(turn)
        self._saving.enter_context(turn.call("save"))

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        for path in self._file.parent.glob(f"model/model.ckpt-{global_step_value}.data-*"):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        self._saving.close()

    def medians(self) -> dict[str, dict[str, float]]:
        """Returns the median of the turns, as in `Clock.calls`."""
        return {
            call: {
                kind: statistics.median(turn.calls[call][kind] for turn in self._turns)
                for kind in ("cpu", "wall")
            }
            for call in ("save", "write")
        }


def _input(mib: int, folder: Path, clock: Clock) -> None:
    """Evaluates records on the disk; goes through the same dataset without a model, and through the files' bytes."""
    files = _write_records(mib, folder)
    made = _estimator(folder, layers=_HIDDEN_LAYERS)
    made.train(_input_fn, steps=1)

    def parse(examples: tf.Tensor) -> Any:
        spec = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        row = tf.io.parse_example(examples, spec)
        pixels = tf.io.decode_raw(tf.strings.substr(row["image"], 0, _WIDTH), tf.uint8)
        pixels.set_shape([None, _WIDTH])
        return {"x": tf.cast(pixels, tf.float32) / 255}, row["label"]

    def input_fn() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(files, num_parallel_reads=2).batch(_RECORDS_IN_BATCH)
        return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    _forget(files)
    with clock.call("evaluate"):
        made.evaluate(input_fn)
    _forget(files)
    with clock.call("tf.data"):
        for _ in input_fn():
            pass
    _forget(files)
    with clock.call("read"):
        for path in files:
            with open(path, "rb", buffering=0) as file:
                while file.read(_PIECE_BYTES):
                    pass


def _write_records(mib: int, folder: Path) -> list[str]:
    generator = np.random.default_rng(5)
    images = [generator.bytes(_RECORD_BYTES) for _ in range(16)]
    feature = tf.train.Feature
    records = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "image": feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": feature(int64_list=tf.train.Int64List(value=[number % 2])),
                }
            )
        ).SerializeToString()
        for number, image in enumerate(images)
    ]
    files = []
    for start in range(0, mib, _FILE_MIB):
        files.append(str(folder / f"records-{start}"))
        with tf.io.TFRecordWriter(files[-1]) as writer:
            for number in range((min(mib - start, _FILE_MIB) << 20) // _RECORD_BYTES):
                writer.write(records[number % len(records)])
    return files


def _forget(files: list[str]) -> None:
    """Drops the files from the system's memory, so the next read is from the disk."""
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _hosts(number: int, folder: Path, clock: Clock) -> None:
    """Trains in many processes of a cluster, each with its own rows."""
    found = growth_hosts.train(number, folder, steps=_STEPS)
    clock.calls["train"] = {
        "cpu": sum(each["cpu"] for each in found),
        "wall": max(each["wall"] for each in found),
    }


def _make_calls(made: estimator.Estimator, folder: Path, clock: Clock) -> None:
    with clock.call("first step"):
        made.train(_input_fn, steps=1)
    with clock.call("steps"):
        made.train(_input_fn, steps=_STEPS + 1)
    with clock.call("evaluate"):
        made.evaluate(_input_fn, steps=3)
    with clock.call("predict"):
        for _ in made.predict(lambda params=None: _input_fn().take(3)):
            pass
    receiver_fn = build_raw_serving_input_receiver_fn(
        {"x": tf.TensorSpec([None, _WIDTH], tf.float32)}, default_batch_size=None
    )
    with clock.call("export"):
        made.export_saved_model(str(folder / "exports"), receiver_fn)


def _estimator(
    folder: Path, *, layers: int = 0, variables: int = 0, saved: int = 0, **config: Any
) -> estimator.Estimator:
    return estimator.Estimator(
        _model_fn,
        config=estimator.RunConfig(model_dir=str(folder / "model"), **config),
        params={"layers": layers, "variables": variables, "saved": saved},
    )


def _input_fn(params: Any = None) -> tf.data.Dataset:
    del params
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(_BATCH, _WIDTH)).astype(np.float32)
    labels = (rows.sum(axis=1) > 0).astype(np.int64)
    return tf.data.Dataset.from_tensors(({"x": rows}, labels)).repeat()


def _model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    hidden = features["x"]
    for layer in range(params["layers"]):
        # Scaled by their number, the sum stays finite.
        hidden += tf.nn.relu(_dense(hidden, f"layer_{layer}", _WIDTH)) / params["layers"]
    if params["variables"]:
        zeros = v1.zeros_initializer()
        weights = [
            v1.get_variable(f"weight_{number}", [_WIDTH], initializer=zeros)
            for number in range(params["variables"])
        ]
        hidden = tf.add_n([hidden * weight for weight in weights])
    for number in range(params.get("saved", 0)):
        v1.get_variable(
            f"saved_{number}",
            [_SAVED_MIB << 18],
            # Random, since TensorFlow folds a constant and keeps the result next to the variable.
            initializer=v1.random_uniform_initializer(),
            trainable=False,
        )
    logits = _dense(hidden, "logits", 2)
    on_cores = "batch_size" in params
    spec = tpu.TPUEstimatorSpec if on_cores else estimator.EstimatorSpec
    if mode == "infer":
        return spec(mode, predictions={"class": tf.argmax(logits, axis=1), "logits": logits})
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    if mode == "eval":
        if on_cores:
            return spec(mode, loss=loss, eval_metrics=(_metrics, [labels, logits]))
        return spec(mode, loss=loss, eval_metric_ops=_metrics(labels, logits))
    optimizer = v1.train.GradientDescentOptimizer(0.001)
    if on_cores:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    return spec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def _dense(inputs: tf.Tensor, name: str, units: int) -> tf.Tensor:
    # `tf.compat.v1.layers.dense` searches all variables for each new one.
    kernel = v1.get_variable(f"{name}/kernel", [inputs.shape[1], units])
    bias = v1.get_variable(f"{name}/bias", [units], initializer=v1.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def _metrics(labels: tf.Tensor, logits: tf.Tensor) -> dict[str, Any]:
    return {
        "accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, axis=1)),
        "auc": v1.metrics.auc(labels, tf.nn.softmax(logits)[:, 1]),
    }


PROGRAMS: dict[str, Callable[[int, Path, Clock], None]] = {
    "rows": _rows,
    "predictions": _predictions,
    "variables": _variables,
    "layers": _layers,
    "cores": _cores,
    "slices": _slices,
    "checkpoint": _checkpoint,
    "input": _input,
    "hosts": _hosts,
}


def main(axis: str, size: int, folder: Path, output: Path) -> None:
    """Measures one point, and writes the results as JSON."""
    clock = Clock()
    PROGRAMS[axis](size, folder, clock)
    found = {"calls": clock.calls, "memory": peak_memory_mb()}
    output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
