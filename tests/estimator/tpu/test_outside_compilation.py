"""`outside_compilation` in the model, on emulated cores: it runs in place, in every mode."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

CORES = 2


def _with_host_python(calls: list[int]):
    """The linear model whose loss and prediction pass through Python on the host."""
    lock = threading.Lock()

    def seen(values: np.ndarray) -> np.ndarray:
        with lock:
            calls.append(len(values))
        return values

    def on_host(values: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(seen, [values], values.dtype), values.shape)

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        outputs = outputs + 0.0 * tf.stop_gradient(v1.tpu.outside_compilation(on_host, outputs))
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = tf.reduce_mean(tf.square(outputs - labels))
        if mode == "eval":
            metrics = (lambda y: {"mean": v1.metrics.mean(y)}, [outputs])
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        step = v1.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step)
        )

    return model_fn


@pytest.mark.parametrize("mode", on_cores.MODES)
def test_it_sees_the_rows_of_every_core(tmp_path, mode):
    calls: list[int] = []
    estimator = on_cores.make(tmp_path, _with_host_python(calls), cores=CORES)
    on_cores.run(estimator, mode)
    share = on_cores.BATCH // CORES
    full, rest = divmod(linear_model.ROWS, on_cores.BATCH)
    expected = {
        "train": [share] * 2 * CORES,
        # A short batch is evaluated on the host, unpadded.
        "eval": [share] * full * CORES + [rest],
        # A short batch is padded, and the end of the input is found by a step that is all padding.
        "infer": [share] * (full + 2) * CORES,
    }
    assert rest
    assert sorted(calls) == sorted(expected[mode])


def _halving(half):
    """Trains the linear model, half of whose output passes through Python."""

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        outputs = half(outputs) + outputs / 2
        loss = tf.reduce_mean(tf.square(outputs - labels))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(linear_model.RATE))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _half_by_py_function(values: tf.Tensor) -> tf.Tensor:
    def on_host(values: tf.Tensor) -> tf.Tensor:
        halves = tf.py_function(lambda value: value / 2, [values], values.dtype)
        return tf.ensure_shape(halves, values.shape)

    return v1.tpu.outside_compilation(on_host, values)


@tf.custom_gradient
def _half_by_numpy_function(values: tf.Tensor):
    def on_host(values: tf.Tensor) -> tf.Tensor:
        halves = tf.numpy_function(lambda value: value / 2, [values], values.dtype)
        return tf.ensure_shape(halves, values.shape)

    def gradient(of_halves: tf.Tensor) -> tf.Tensor:
        return v1.tpu.outside_compilation(on_host, of_halves)

    return v1.tpu.outside_compilation(on_host, values), gradient


@pytest.mark.parametrize(
    ("number", "half"),
    [(1, _half_by_py_function), (1, _half_by_numpy_function), (CORES, _half_by_numpy_function)],
)
def test_gradients_pass_through_python(tmp_path, number, half):
    estimator = on_cores.make(tmp_path, _halving(half), cores=number)
    estimator.train(on_cores.train_input_fn, steps=4)
    on_cores.assert_descended(estimator, 4)


@row(
    "estimator",
    "the gradient of a `tf.py_function` on several cores",
    "The gradient of tf.py_function 'EagerPyFunc' can't be computed on 2 cores",
    "tf.custom_gradient",
    "test_outside_compilation.py:",
)
def test_the_gradient_of_a_py_function_is_one_cores(refused, tmp_path):
    with refused():
        on_cores.make(tmp_path, _halving(_half_by_py_function), cores=CORES).train(
            on_cores.train_input_fn, steps=1
        )


def _reporting(report):
    """The linear model with a call outside of it that nothing waits for."""

    def model_fn(features, labels, mode, params):
        outputs = linear_model.outputs_of(features)
        v1.tpu.outside_compilation(report, tf.reduce_mean(outputs))
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": outputs})
        loss = tf.reduce_mean(tf.square(outputs - labels))
        if mode == "eval":
            return tpu.TPUEstimatorSpec(mode, loss=loss)
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize("mode", on_cores.MODES)
def test_what_nothing_waits_for_runs_on_every_core_in_every_step(tmp_path, mode):
    means: list[float] = []
    lock = threading.Lock()

    def keep(mean: np.ndarray) -> None:
        with lock:
            means.append(float(mean))

    report = _reporting(lambda mean: tf.numpy_function(keep, [mean], []))
    on_cores.run(on_cores.make(tmp_path, report, cores=CORES), mode)
    full, _ = divmod(linear_model.ROWS, on_cores.BATCH)
    steps = {"train": 2 * CORES, "eval": full * CORES + 1, "infer": (full + 2) * CORES}
    assert len(means) == steps[mode]
    assert len(set(means)) > 1


def test_summaries_are_written_without_host_call(tmp_path):
    def report(mean: tf.Tensor) -> None:
        with tf.summary.create_file_writer(str(tmp_path / "from_cores")).as_default():
            tf.summary.scalar("mean", mean, step=v1.train.get_global_step())

    estimator = on_cores.make(tmp_path / "model", _reporting(report), cores=CORES)
    estimator.train(on_cores.train_input_fn, steps=3)
    (file,) = (tmp_path / "from_cores").iterdir()
    values = [
        value for event in v1.train.summary_iterator(str(file)) for value in event.summary.value
    ]
    assert [value.tag for value in values] == ["mean"] * 3 * CORES
