"""The linear model in an Estimator under strategies, and what these tests share."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1

REPLICAS = 2
# Of one replica; a step takes one batch for each.
SHARE = on_cores.BATCH // REPLICAS


def mirrored(replicas: int = REPLICAS) -> tf.distribute.Strategy:
    # CPU collectives of several strategies in one process get into each other's way.
    return tf.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def mirrored_v1() -> tf.distribute.Strategy:
    return v1.distribute.MirroredStrategy(
        [f"/cpu:{index}" for index in range(REPLICAS)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def central() -> tf.distribute.Strategy:
    devices = [f"/cpu:{index}" for index in range(REPLICAS)]
    return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")


# Name -> what makes it, and its replicas here.
STRATEGIES: dict[str, tuple[Callable[[], tf.distribute.Strategy], int]] = {
    "mirrored": (mirrored, REPLICAS),
    "mirrored_v1": (mirrored_v1, REPLICAS),
    "one_device": (lambda: tf.distribute.OneDeviceStrategy("/cpu:1"), 1),
    "central_storage": (central, REPLICAS),
    "multi_worker_mirrored": (tf.distribute.MultiWorkerMirroredStrategy, 1),
    "parameter_server": (v1.distribute.experimental.ParameterServerStrategy, 1),
    "default": (tf.distribute.get_strategy, 1),
}


def cases(name: str, *values: str, swept: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrizes a test; what is swept runs with the long tests only."""
    others = [pytest.param(value, marks=pytest.mark.sweep) for value in swept]
    return pytest.mark.parametrize(name, [*values, *others])


def sgd_step(loss: tf.Tensor) -> tf.Operation:
    optimizer = v1.train.GradientDescentOptimizer(linear_model.RATE)
    return optimizer.minimize(loss, v1.train.get_global_step())


def model_fn_for(
    step: Callable[[tf.Tensor], Any] = sgd_step,
    loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
    **fields: Any,
) -> Callable[..., Any]:
    """A model_fn that knows of no strategy: `step` and `loss_fn` are its train_op and its loss."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        outputs = linear_model.outputs_of(features)
        if mode == "infer":
            return tfe.EstimatorSpec(mode, predictions={"y": outputs})
        loss = (loss_fn or _mean_of_squares)(outputs, labels)
        train_op = step(loss) if mode == "train" else None
        metrics = {"mae": v1.metrics.mean_absolute_error(labels, outputs)}
        return tfe.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, **fields
        )

    return model_fn


def _mean_of_squares(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(outputs - labels))


def make(
    folder: Any,
    strategy: tf.distribute.Strategy | None = None,
    model_fn: Callable[..., Any] | None = None,
    **config: Any,
) -> tfe.Estimator:
    options = {"train_distribute": strategy, "eval_distribute": strategy, **config}
    run_config = tfe.RunConfig(model_dir=str(folder), **options)
    return tfe.Estimator(model_fn or model_fn_for(), config=run_config)


def train_input_of(batch: int = SHARE) -> Callable[[], tf.data.Dataset]:
    """The rows again and again; under several replicas a batch is one replica's."""
    return functools.partial(on_cores.train_input_fn, {"batch_size": batch})


def eval_input_of(batch: int) -> Callable[[], tf.data.Dataset]:
    """The rows once; the last batch may be short."""
    return functools.partial(linear_model.input_fn, {"batch_size": batch})


def predicted(estimator: tfe.Estimator) -> np.ndarray:
    return np.array([row["y"] for row in estimator.predict(eval_input_of(3))])


def summed_descent(steps: int, rate: float) -> tuple[np.ndarray, float]:
    """Gradient descent on the sum of the squares of each global batch, by formula."""
    weights, bias = linear_model.WEIGHTS, linear_model.BIAS
    for features, labels in linear_model.batches(on_cores.BATCH, epochs=9)[:steps]:
        error = linear_model.output(features, weights, bias) - labels
        weights = weights - rate * 2 * features.T @ error
        bias = bias - rate * 2 * np.sum(error)
    return weights, bias


class Losses(v1.train.SessionRunHook):
    """Keeps the loss of each session call."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def begin(self) -> None:
        self._loss = v1.get_collection(v1.GraphKeys.LOSSES)[-1]

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append(run_values.results)
