"""The plan of an evaluation: what a session runs and counts, and when it stops."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.evaluating.session_state import starting_over
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import SessionCreatorFn
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

LOSS = "loss"
LOSS_BY_ROWS = "loss_by_rows"
GLOBAL_STEP = "global_step"

SECONDS_PER_CALL = 1.0
"""Seconds after which a session call that runs many batches returns, for Ctrl-C and hooks to stop an endless input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationLoop:
    """Many batches in one session call."""

    # Runs them when it is fetched.
    all_done: tf.Tensor
    # Stops the session after the last batch.
    stop_hook: v1.train.SessionRunHook
    # Options of the session calls.
    options: v1.RunOptions | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """An evaluation, placed and ready to run."""

    # The model.
    template: ModelTemplate
    # What a session call runs: a batch, or all of them.
    update_op: Any
    # Metric name -> final value, perhaps a nested structure, to be read at the end.
    values: Mapping[str, Any]
    # Counted in addition to the metrics.
    sums: EvaluationSums
    # Stops the session after the last batch.
    stop_hook: v1.train.SessionRunHook
    # Makes a loop of batches, given whether the session's master is this process; `None` if
    # `update_op` runs many, or if hooks must see every call.
    make_loop: Callable[[bool], EvaluationLoop] | None = None
    # Placeholder, which may be left unfed, of the float64 seconds after which a call of `update_op`
    # returns; `None` if a call is one batch.
    seconds_per_call: tf.Tensor | None = None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator
    # Where it runs, for log lines.
    ran_on: str = "this host"


def clock() -> tf.Tensor:
    """Returns the time in seconds, a float64 scalar, read whenever the op runs."""
    if tf_private.is_op_determinism_enabled():
        # tf.timestamp() fails there, although the time changes no result here.
        now = starting_over(time.time, [], tf.float64)
        now.set_shape(())
        return now
    return tf.timestamp()


def is_time_up(started: tf.Tensor, seconds: float | tf.Tensor) -> tf.Tensor:
    """Returns, in a loop of the graph, whether its session call must return."""
    return tf.abs(clock() - started) > seconds


def log_progress(done: int, *, before: int, steps: int | None) -> None:
    """Logs the batches done as the original does: each of fewer than 20, else every tenth of them."""
    if steps is None:
        return
    every = 1 if steps < 20 else int(steps / 10)
    for batch in range(before + 1, done + 1):
        if batch % every == 0 or batch == steps:
            _logger.info("Evaluation [%d/%d]", batch, steps)


class StopAfterLastBatchHook(v1.train.SessionRunHook):
    """Stops after the session call that ran the last of the batches."""

    def __init__(
        self,
        eval_step: tf.Variable,
        all_done: tf.Tensor,
        *,
        steps: int | None,
        left_out: tf.Variable | None = None,
    ) -> None:
        self._done = eval_step.read_value()
        self._all_done = all_done
        self._steps = steps
        self._logged = 0
        self._left_out = None if left_out is None else left_out.read_value()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Starts counting: a reopened session begins with the first batch."""
        self._logged = 0

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Fetches whether the call was the last."""
        return v1.train.SessionRunArgs(self._all_done)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Logs the batches, and stops after the last one."""
        if self._steps is not None:
            done = int(run_context.session.run(self._done))
            log_progress(done, before=self._logged, steps=self._steps)
            self._logged = done
        if not run_values.results:
            return
        if self._left_out is not None:
            rows = int(run_context.session.run(self._left_out))
            if rows:
                _logger.warning(
                    "The last %d rows of the input are not evaluated: they fill batches for only "
                    "some of the cores. Let input_fn keep short batches, "
                    "batch(..., drop_remainder=False), to evaluate every row.",
                    rows,
                )
        run_context.request_stop()


def check_metrics(metrics: Any) -> Mapping[str, Any]:
    """Checks and returns the result of a metric_fn."""
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"eval_metric_ops must be a dict, given: {metrics!r}. The metric_fn of eval_metrics must "
            "return a dict of metric name to (value, update_op)."
        )
    for name, quoted in ((LOSS, f'"{LOSS}"'), (GLOBAL_STEP, f"`{GLOBAL_STEP}`")):
        if name in metrics:
            raise ValueError(
                f"Metric with name {quoted} is not allowed, because Estimator already defines "
                "a default metric with the same name. Give yours another name."
            )
    return metrics


_NAMES = ("batches", "rows", "loss_times_rows")
_SUMS_SO_FAR = "tfx_tpu_trainer/evaluated"


class EvaluationSums:
    """Sums of one evaluation, in local variables, of float64 for many batches."""

    def __init__(self) -> None:
        with v1.variable_scope("evaluation_sums"):
            self._totals = {name: local_zero(name, tf.float64) for name in _NAMES}
        # Name -> final value, to be read after the last batch.
        self.values: dict[str, tf.Tensor] = {
            name: total.read_value() for name, total in self._totals.items()
        }
        for name in ("batches", "rows"):
            v1.add_to_collection(_SUMS_SO_FAR, self.values[name])

    def loss_by_rows(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the mean of the batch losses, weighted by their rows."""
        return tf.cast(self.values["loss_times_rows"] / self.values["rows"], dtype)

    def add(self, *, loss: tf.Tensor, rows: tf.Tensor | None) -> list[Any]:
        """Counts a batch; waits for the loss, so a run at the end of the input counts nothing."""
        weight = tf.cast(0 if rows is None else rows, tf.float64)
        addends = {
            "batches": tf.constant(1.0, tf.float64),
            "rows": weight,
            "loss_times_rows": tf.cast(loss, tf.float64) * weight,
        }
        with tf.control_dependencies([loss]):
            return [
                self._totals[name].assign_add(addend, read_value=False)
                for name, addend in addends.items()
            ]


def sums_so_far() -> list[tf.Tensor]:
    """Returns the batches and rows that the default graph's evaluation has counted, for hooks."""
    return v1.get_collection(_SUMS_SO_FAR)


def create_eval_step() -> tf.Variable:
    """Makes the counter of batches, where `GraphKeys.EVAL_STEP` lets hooks find it."""
    return local_zero("eval_step", tf.int64, collections=[v1.GraphKeys.EVAL_STEP])


def create_left_out() -> tf.Variable:
    """Makes the counter of rows that are read but not evaluated."""
    return local_zero("rows_left_out", tf.int64)


def local_zero(name: str, dtype: tf.DType, collections: Sequence[str] = ()) -> Any:
    """Makes a local variable, a scalar that begins at 0 with each evaluation."""
    return v1.get_variable(
        name,
        shape=(),
        dtype=dtype,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, *collections],
    )
