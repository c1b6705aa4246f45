"""The linear model in a plain Estimator, and what the tests of schedules share.

As a program it is one task of a cluster: `python -m tests.estimator.schedule.plain MODEL_DIR MAX_STEPS`.
"""

import functools
import sys
from typing import Any

import tensorflow as tf

from tests.estimator import linear_model
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1

BATCH = 5


def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
    """The linear model, trained by gradient descent."""
    outputs = linear_model.outputs_of(features)
    if mode == "infer":
        return tfe.EstimatorSpec(mode, predictions={"y": outputs})
    loss = tf.reduce_mean(tf.square(outputs - labels))
    optimizer = v1.train.GradientDescentOptimizer(linear_model.RATE)
    train_op = optimizer.minimize(loss, v1.train.get_global_step()) if mode == "train" else None
    metrics = {"mae": v1.metrics.mean_absolute_error(labels, outputs)}
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


def make(folder: Any, *, save: int | None = 3, fn: Any = model_fn, **config: Any) -> tfe.Estimator:
    run_config = tfe.RunConfig(
        model_dir=str(folder), save_checkpoints_steps=save, save_checkpoints_secs=None, **config
    )
    return tfe.Estimator(fn, config=run_config)


train_input = functools.partial(linear_model.endless_input_fn, {"batch_size": BATCH})
eval_input = functools.partial(linear_model.input_fn, {"batch_size": BATCH})


def receiver_fn() -> Any:
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    return tfe.export.ServingInputReceiver({"x": x}, {"x": x})


class Recorder(tfe.Exporter):
    """Notes what it is told."""

    def __init__(self, name: str = "recorder") -> None:
        self._name = name
        self.calls: list[dict[str, Any]] = []

    @property
    def name(self) -> str:
        return self._name

    def export(self, **told: Any) -> bytes:
        self.calls.append(told)
        return b"exported %d" % len(self.calls)


def main(model_dir: str, max_steps: int) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    estimator = make(
        model_dir, save=200, experimental_max_worker_delay_secs=1, log_step_count_steps=200
    )
    # A worker that is left over ends when the last checkpoint is there.
    hook = tfe.experimental.make_stop_at_checkpoint_step_hook(estimator, max_steps, 1)
    tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(train_input, max_steps=max_steps, hooks=[hook]),
        tfe.EvalSpec(
            eval_input,
            steps=None,
            exporters=tfe.FinalExporter("final", receiver_fn),
            start_delay_secs=0,
            throttle_secs=1,
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
