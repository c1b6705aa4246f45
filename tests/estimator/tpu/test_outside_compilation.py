"""`outside_compilation` in the model, on emulated cores: it runs in place, in every mode."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import cores
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

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


@pytest.mark.parametrize("mode", cores.MODES)
def test_it_sees_the_rows_of_every_core(tmp_path, mode):
    calls: list[int] = []
    estimator = cores.make(tmp_path, _with_host_python(calls), cores=CORES)
    cores.run(estimator, mode)
    share = cores.BATCH // CORES
    full, rest = divmod(linear_model.ROWS, cores.BATCH)
    expected = {
        "train": [share] * 2 * CORES,
        # A short batch is evaluated on the host, unpadded.
        "eval": [share] * full * CORES + [rest],
        # A short batch is padded, and the end of the input is found by a step that is all padding.
        "infer": [share] * (full + 2) * CORES,
    }
    assert rest
    assert sorted(calls) == sorted(expected[mode])
