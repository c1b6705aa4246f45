"""What a session runs to evaluate a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import metric_ops
from tfx_tpu_trainer.engine.evaluation_sums import EvaluationSums, create_eval_step
from tfx_tpu_trainer.engine.placement.host_loop import build_evaluation_loop
from tfx_tpu_trainer.engine.sessions import SessionCreatorFn
from tfx_tpu_trainer.engine.template import ModelTemplate, count_rows

v1 = tf.compat.v1

LOSS = "loss"
GLOBAL_STEP = "global_step"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """An evaluation, placed and ready to run.

    Attributes:
        template: The model.
        update_op: What a session call runs: a batch, or all of them.
        values: Metric name -> final value, to be read at the end; nested structures may be.
        sums: What is counted beside the metrics.
        stop_hook: Stops the session after the last batch.
        make_loop: Gives an op that runs all batches in one session call; `None` where
            `update_op` does so, or where every call must be seen.
        session_creator: Makes the session's creator. Defaults to `ChiefSessionCreator`.
    """

    template: ModelTemplate
    update_op: Any
    values: Mapping[str, Any]
    sums: EvaluationSums
    stop_hook: v1.train.SessionRunHook
    make_loop: Callable[[], tf.Operation] | None = None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator


class StopAfterBatchesHook(v1.train.SessionRunHook):
    """Counts batches in the graph's eval step, one a session call, and stops after some."""

    def __init__(self, eval_step: tf.Variable, *, steps: int | None) -> None:
        """Makes the counter's op.

        Args:
            eval_step: The counter.
            steps: Batches to stop after; `None` never stops.
        """
        self._increment = eval_step.assign_add(1, read_value=True)
        self._steps = steps

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Adds the counter to the call."""
        del run_context
        return v1.train.SessionRunArgs(self._increment)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops after the last batch."""
        if self._steps is not None and run_values.results >= self._steps:
            run_context.request_stop()


class StopAfterOneCallHook(v1.train.SessionRunHook):
    """Stops after a single session call: it has run all batches."""

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops."""
        del run_values
        run_context.request_stop()


def plan_evaluation_on_host(template: ModelTemplate, *, steps: int | None) -> EvaluationPlan:
    """Plans an evaluation on this host, a batch in each session call.

    Args:
        template: A template of mode `"eval"`, placed on the host.
        steps: Batches to evaluate; `None` goes to the end of the input.

    Returns:
        The plan. Its `loss` is the mean of the batch losses, as in the original.

    Raises:
        ValueError: If a metric has a reserved name, or eval_metrics gives no mapping.
    """
    built = dict(template.eval_metric_ops)
    if template.eval_metrics is not None:
        built.update(check_metrics(template.eval_metrics()))
    check_metrics(built)
    values, updates = metric_ops.split({**built, LOSS: v1.metrics.mean(template.loss)})
    values[GLOBAL_STEP] = v1.train.get_global_step().read_value()
    sums = EvaluationSums()
    counted = sums.add(loss=template.loss, rows=count_rows((template.features, template.labels)))
    eval_step = create_eval_step()
    update_op = tf.group(*tf.nest.flatten(updates), *counted)
    return EvaluationPlan(
        template=template,
        update_op=update_op,
        values=values,
        sums=sums,
        stop_hook=StopAfterBatchesHook(eval_step, steps=steps),
        make_loop=lambda: build_evaluation_loop(
            template, update_op, eval_step=eval_step, steps=steps
        ),
    )


def check_metrics(metrics: Any) -> Mapping[str, Any]:
    """Checks what a metric_fn returned and gives it back.

    Raises:
        ValueError: If it is no mapping, or a metric has a reserved name.
    """
    if not isinstance(metrics, Mapping):
        raise ValueError(
            "The metric_fn of eval_metrics must return a dict of metric name to "
            f"(value, update_op); got {metrics!r}."
        )
    for name in (LOSS, GLOBAL_STEP):
        if name in metrics:
            raise ValueError(
                f"Metric with name `{name}` is not allowed, because evaluate() already defines "
                "a default metric with the same name. Give yours another name."
            )
    return metrics
