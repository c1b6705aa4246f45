"""What drivers of libraries share: rows of two kinds, and a TPUEstimator around a model_fn that uses a library."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tests.programs.drivers.calls import Calls, run_config

ROWS, BATCH, WIDTH = 32, 16, 4
_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5], [1.0]], np.float32)).astype(np.float32)
CLASSES = (Y > 0).astype(np.int32)[:, 0]


def rows(labels: np.ndarray) -> Callable[..., tf.data.Dataset]:
    """Returns an input_fn of endless rows."""

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(({"x": X}, labels)).repeat()
        return data.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def rows_once(params: dict[str, Any]) -> tf.data.Dataset:
    """An input_fn of each row once, without labels."""
    data = tf.data.Dataset.from_tensor_slices({"x": X})
    return data.batch(params["batch_size"], drop_remainder=True)


def receiver() -> Any:
    """A serving receiver of rows."""
    x = tf.placeholder(tf.float32, [None, WIDTH])
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


def predicted(mode: str, predictions: dict[str, tf.Tensor]) -> Any:
    """Returns the spec of a prediction, which can be exported."""
    outputs = {"serving_default": tf.estimator.export.PredictOutput(predictions)}
    return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions, export_outputs=outputs)


def spec(
    mode: str,
    loss: tf.Tensor,
    metrics: Any,
    make_optimizer: Callable[[], Any],
    cores: int,
    *,
    to_minimize: Any = None,
) -> Any:
    """Returns the spec of training or evaluation; on cores the optimizer sums over them."""
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = make_optimizer()
        if cores:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            minimized = loss if to_minimize is None else to_minimize
            train_op = optimizer.minimize(minimized, global_step=tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metrics=metrics
    )


def all_calls(
    model_fn: Callable[..., Any],
    folder: str,
    cores: int,
    *,
    labels: np.ndarray = Y,
    unset: Sequence[str] = (),
    export_to_tpu: bool = True,
) -> None:
    """Trains, resumes, evaluates, predicts with and exports a model_fn in a TPUEstimator.

    Args:
        model_fn: The model.
        folder: Where checkpoints go.
        cores: How many; 0 for the host.
        labels: Of the rows.
        unset: Prefixes of variables that may be NaN.
        export_to_tpu: Whether the export has a graph for TPUs too.
    """

    def make() -> Any:
        return tf.estimator.tpu.TPUEstimator(
            model_fn,
            config=run_config(tf.estimator.tpu, folder, cores),
            use_tpu=cores > 0,
            train_batch_size=BATCH,
            eval_batch_size=BATCH,
            predict_batch_size=BATCH,
            export_to_tpu=export_to_tpu,
        )

    calls = Calls(make, unset=unset)
    calls.train_and_resume(rows(labels))
    calls.evaluate(rows(labels), steps=2)
    calls.predict(rows_once, rows=ROWS)
    calls.export(receiver, {"x": X[:3]})
    calls.finish()
