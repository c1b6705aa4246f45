"""Runs an evaluation in a session."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import metric_ops
from tfx_tpu_trainer.engine.sessions import SessionSettings, open_restored_session
from tfx_tpu_trainer.engine.template import ModelTemplate, count_rows

v1 = tf.compat.v1

_LOSS = "loss"
_GLOBAL_STEP = "global_step"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalResult:
    """What an evaluation found.

    Attributes:
        metrics: Name -> NumPy value, as `evaluate()` returns it: the model's metrics, `loss`
            (the mean of the batch losses, each batch weighing the same, as in the original)
            and `global_step`.
        loss_by_rows: The mean of the batch losses, each weighing by its rows: exact for losses
            that are means over rows. NaN where batches have no rows.
        num_examples: Rows seen; `None` where the features have no axis to count.
        global_step: Global step of the variables evaluated.
        checkpoint_path: The checkpoint evaluated; `None` for freshly initialized variables.
        seconds: Wall time of the session, building the graph left out.
    """

    metrics: Mapping[str, Any]
    loss_by_rows: float
    num_examples: int | None
    global_step: int
    checkpoint_path: str | None
    seconds: float


class _Counter:
    """Sums of one evaluation, in local variables: batches are many and float32 is short.

    They wait for the loss, so that the run that finds the input at its end counts nothing.
    """

    def __init__(self, loss: tf.Tensor, rows: tf.Tensor | None):
        rows = tf.constant(0, tf.int64) if rows is None else rows
        weight = tf.cast(rows, tf.float64)
        sums = {
            "batches": tf.constant(1.0, tf.float64),
            "rows": weight,
            "loss_times_rows": tf.cast(loss, tf.float64) * weight,
        }
        self.values, self.updates = {}, []
        with v1.variable_scope("evaluation_sums"):
            for name, addend in sums.items():
                total = v1.get_variable(
                    name,
                    shape=(),
                    dtype=tf.float64,
                    initializer=v1.zeros_initializer(),
                    trainable=False,
                    collections=[v1.GraphKeys.LOCAL_VARIABLES],
                )
                self.values[name] = total.read_value()
                with tf.control_dependencies([loss]):
                    self.updates.append(total.assign_add(addend, read_value=False))


class _StopAfterBatchesHook(v1.train.SessionRunHook):
    """Counts batches in the graph's eval step and stops after a number of them."""

    def __init__(self, eval_step: tf.Variable, *, steps: int | None):
        self._increment = eval_step.assign_add(1, read_value=True)
        self._steps = steps

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        del run_context
        return v1.train.SessionRunArgs(self._increment)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if self._steps is not None and run_values.results >= self._steps:
            run_context.request_stop()


def evaluate(
    template: ModelTemplate,
    *,
    settings: SessionSettings,
    hooks: Sequence[v1.train.SessionRunHook],
    steps: int | None,
    checkpoint_path: str | None,
) -> EvalResult:
    """Runs a placed template over its input and gathers the metrics.

    Must be called with the template's graph as the default one.

    Args:
        template: A template of mode `"eval"`, already placed.
        settings: Settings of the run.
        hooks: The caller's hooks, the placement's and the input's; the model's own are in the
            template.
        steps: Batches to evaluate; `None` goes to the end of the input.
        checkpoint_path: Checkpoint to restore; `None` initializes the variables.

    Returns:
        The result.

    Raises:
        ValueError: If a metric is called `loss` or `global_step`, if eval_metrics gives no
            mapping, or if the input has no batch.
    """
    values, updates = _metrics(template)
    counter = _Counter(template.loss, count_rows((template.features, template.labels)))
    values[_GLOBAL_STEP] = v1.train.get_global_step().read_value()
    eval_step = _create_eval_step()
    final_values = v1.train.FinalOpsHook((values, counter.values))
    all_hooks = [*hooks, *template.hooks, final_values]
    all_hooks.append(_StopAfterBatchesHook(eval_step, steps=steps))
    scaffold = _with_default_local_init(template.make_scaffold())
    update_op = tf.group(*tf.nest.flatten(updates), *counter.updates)
    started = time.monotonic()
    with open_restored_session(
        settings=settings,
        master=settings.evaluation_master,
        scaffold=scaffold,
        checkpoint_path=checkpoint_path,
        hooks=all_hooks,
    ) as session:
        while not session.should_stop():
            session.run(update_op)
    seconds = time.monotonic() - started
    metrics, sums = final_values.final_ops_values
    if not sums["batches"]:
        raise ValueError(
            "evaluate() got no batch: the input is empty. Check the files that input_fn reads, "
            "and that a batch size with drop_remainder=True is not larger than the data."
        )
    rows = int(sums["rows"])
    return EvalResult(
        metrics=metrics,
        loss_by_rows=float(sums["loss_times_rows"] / rows) if rows else float("nan"),
        num_examples=rows or None,
        global_step=int(metrics[_GLOBAL_STEP]),
        checkpoint_path=checkpoint_path,
        seconds=seconds,
    )


def _metrics(template: ModelTemplate) -> tuple[dict[str, Any], list[Any]]:
    metrics = dict(template.eval_metric_ops)
    if template.eval_metrics is not None:
        built = template.eval_metrics()
        if not isinstance(built, Mapping):
            raise ValueError(
                "The metric_fn of eval_metrics must return a dict of metric name to "
                f"(value, update_op); got {built!r}."
            )
        metrics.update(built)
    for name in (_LOSS, _GLOBAL_STEP):
        if name in metrics:
            raise ValueError(
                f"Metric with name `{name}` is not allowed, because evaluate() already defines "
                "a default metric with the same name. Give yours another name."
            )
    metrics[_LOSS] = v1.metrics.mean(template.loss)
    return metric_ops.split(metrics)


def _create_eval_step() -> tf.Variable:
    return v1.get_variable(
        "eval_step",
        shape=(),
        dtype=tf.int64,
        initializer=v1.zeros_initializer(),
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.EVAL_STEP],
    )


def _with_default_local_init(scaffold: v1.train.Scaffold) -> v1.train.Scaffold:
    """Adds the metrics' own initialization to a local_init_op that the user gave."""
    if scaffold.local_init_op is None:
        return scaffold
    both = tf.group(scaffold.local_init_op, v1.train.Scaffold.default_local_init_op())
    return v1.train.Scaffold(local_init_op=both, copy_from_scaffold=scaffold)
