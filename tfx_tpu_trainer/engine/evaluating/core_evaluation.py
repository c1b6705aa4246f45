"""Evaluation on TPU cores, emulated or real, exact to the last row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.graph_copy import CoreCopier, Fetch, GraphCopier
from tfx_tpu_trainer.engine.copying.traced_host_function import (
    TracedHostFunction,
    trace_host_function,
)
from tfx_tpu_trainer.engine.evaluating import metric_ops
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import (
    GLOBAL_STEP,
    LOSS,
    SECONDS_PER_CALL,
    EvaluationPlan,
    EvaluationSums,
    StopAfterLastBatchHook,
    check_metrics,
    clock,
    create_eval_step,
    create_left_out,
    is_time_up,
)
from tfx_tpu_trainer.engine.feeding.short_batches import DrawnBatches, FiniteFeed
from tfx_tpu_trainer.engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()


def plan_evaluation_on_cores(
    template: ModelTemplate,
    feed: FiniteFeed,
    *,
    cores: int,
    broadcast: bool,
    steps: int | None,
    for_cores: Callable[[GraphCopier], CoreCopier],
) -> EvaluationPlan:
    """Plans an evaluation over cores: as many batches in one session call as hooks need not see.

    A number of steps is one call, as in the original, unless nobody could tell; to the end of the
    input, which may have none, a call each second.

    Full batches are cut over the cores. What is left for the last step runs on one copy of the
    same template, unpadded, so that a metric_fn needs no padding logic: a short batch whole;
    full batches that do not suffice for all cores one after the other, as the model may rely on
    their size. Where every batch is full, metric_fn is told so, as on a TPU; one that does not
    take a single core's batch as well leaves out the batches that do not suffice for all.

    Args:
        template: A template of mode `"eval"`, traced on the feed's placeholders.
        feed: Returns each core its rows.
        cores: Number of replicas.
        broadcast: Whether every core has the whole batch.
        steps: Batches to evaluate; `None` goes to the end of the input.
        for_cores: Returns what copies the template onto the cores, given what copies it onto this
            host; the same emulates them.

    Returns:
        The plan.
    """
    evaluation = _CoreEvaluation(
        template, feed, cores=cores, broadcast=broadcast, steps=steps, for_cores=for_cores
    )
    return evaluation.plan()


class _CoreEvaluation:
    """Evaluates step by step, in a loop of the graph.

    What must happen in order is ordered by what the methods return: a branch of a conditional and
    the body of a loop give tensors, so each gives how many batches it has counted, once they are.
    """

    def __init__(
        self,
        template: ModelTemplate,
        feed: FiniteFeed,
        *,
        cores: int,
        broadcast: bool,
        steps: int | None,
        for_cores: Callable[[GraphCopier], CoreCopier],
    ) -> None:
        self._template = template
        self._feed = feed
        self._cores = cores
        self._steps = steps
        self._sums, self._eval_step = EvaluationSums(), create_eval_step()
        # Of batches that are one each for a core, those of the last step may not suffice for all.
        may_lack = feed.always_full and len(feed.draws()) > 1
        self._surely_full = feed.always_full and not may_lack
        self._metrics = trace_host_function(
            template.eval_metrics, cores=cores, broadcast=broadcast, full=feed.always_full
        )
        self._host_call = trace_host_function(
            template.host_call, cores=cores, broadcast=broadcast, full=self._surely_full
        )
        self._values, self._counts = _split_metrics(self._metrics)
        self._counts_of_one = _for_one_core(self._counts) if may_lack else self._counts
        leaves_out = self._counts is not None and self._counts_of_one is None
        self._left_out = create_left_out() if leaves_out else None
        self._copier = GraphCopier(template.graph)
        self._cores_copier = for_cores(self._copier)

    def plan(self) -> EvaluationPlan:
        seconds = v1.placeholder_with_default(
            tf.constant(SECONDS_PER_CALL if self._steps is None else math.inf, tf.float64),
            (),
            name="seconds_per_call",
        )
        all_done = tf.function(self._run, autograph=False)(seconds)
        return EvaluationPlan(
            template=self._template,
            update_op=all_done,
            seconds_per_call=seconds,
            values={**self._values, LOSS: self._sums.loss_by_rows(self._template.loss_dtype)},
            sums=self._sums,
            stop_hook=StopAfterLastBatchHook(
                self._eval_step, all_done, steps=self._steps, left_out=self._left_out
            ),
        )

    def _run(self, seconds: tf.Tensor) -> tf.Tensor:
        """Runs steps until all are done or the time is up; tells whether all are."""
        started = clock()

        def all_done(count: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return ended if self._steps is None else tf.logical_or(ended, count >= self._steps)

        def goes_on(count: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return tf.logical_not(
                tf.logical_or(all_done(count, ended), is_time_up(started, seconds))
            )

        start = (tf.cast(self._eval_step.read_value(), tf.int32), tf.constant(False))
        return all_done(*tf.while_loop(goes_on, self._one_step, start, parallel_iterations=1))

    def _one_step(self, count: tf.Tensor, ended: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del ended
        drawn = self._feed.draw(self._copier)
        has_rows = drawn.total_rows > 0
        done = tf.cond(has_rows, lambda: self._count_step(drawn), lambda: tf.constant(0))
        return count + done, drawn.ended

    def _count_step(self, drawn: DrawnBatches) -> tf.Tensor:
        def count_full() -> tf.Tensor:
            outputs = self._on_cores(self._feed.cut_full(drawn))
            return self._count(outputs, drawn.total_rows, self._counts)

        if self._surely_full:
            counted = count_full()
        else:
            is_full = self._feed.is_full(drawn)
            counted = tf.cond(is_full, count_full, lambda: self._count_rest(drawn))
        with tf.control_dependencies([counted]):
            incremented = self._eval_step.assign_add(tf.cast(counted, tf.int64), read_value=False)
        with tf.control_dependencies([incremented]):
            return tf.identity(counted)

    def _count_rest(self, drawn: DrawnBatches) -> tf.Tensor:
        """Counts what is left for the last step, on one copy of the template."""
        feed = self._feed
        if not feed.always_full:
            return self._count(self._on_one(feed.whole(drawn)), drawn.total_rows, self._counts)
        if self._left_out is not None:
            more = tf.cast(drawn.total_rows, self._left_out.dtype)
            with tf.control_dependencies([self._left_out.assign_add(more, read_value=False)]):
                return tf.constant(0)
        rows = feed.full_rows()

        def count_piece(index: tf.Tensor) -> tuple[tf.Tensor]:
            outputs = self._on_one(feed.piece(drawn, index))
            return (index + self._count(outputs, tf.constant(rows), self._counts_of_one),)

        pieces = drawn.total_rows // rows
        (counted,) = tf.while_loop(lambda index: index < pieces, count_piece, [0])
        return tf.minimum(counted, 1)

    def _count(
        self, outputs: list[tf.Tensor], rows: tf.Tensor, counts: _MetricCounts | None
    ) -> tf.Tensor:
        loss, of_metrics, of_host_call = self._unpacked(outputs)
        effects = self._sums.add(loss=loss, rows=rows)
        if counts is not None:
            effects += counts.function.copy(
                self._copier, of_metrics, counts.updates, name="metrics"
            )
        if self._host_call is not None:
            effects.append(self._host_call.run(self._copier, of_host_call, name="host_call"))
        with tf.control_dependencies(effects):
            return tf.constant(1)

    def _on_cores(self, fed: list[dict[str, tf.Tensor]]) -> list[tf.Tensor]:
        """Returns loss and host tensors of a full batch, from all cores."""
        fetches = [Fetch(core, self._template.loss) for core in range(self._cores)]
        parts = [(f, f.fetches()) for f in (self._metrics, self._host_call) if f is not None]
        wanted = [*fetches, *(fetch for _, part in parts for fetch in part)]
        copies = self._cores_copier.copy(wanted, replaced=fed, name="cores")
        outputs = [tf.add_n(copies[: self._cores]) / self._cores]
        start = self._cores
        for function, part in parts:
            outputs += function.gathered(copies[start : start + len(part)])
            start += len(part)
        return outputs

    def _on_one(self, fed: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns the same of a batch that runs on one copy."""
        functions = [f for f in (self._metrics, self._host_call) if f is not None]
        nodes = [self._template.loss, *(tensor for f in functions for tensor in f.tensors)]
        fetches = [Fetch(0, node) for node in nodes]
        return self._copier.copy(fetches, replaced=[fed], name="short_batch", alone=True)

    def _unpacked(
        self, outputs: list[tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        loss, *rest = outputs
        count = 0 if self._metrics is None else len(self._metrics.tensors)
        return loss, rest[:count], rest[count:]


@dataclasses.dataclass(frozen=True)
class _MetricCounts:
    """What counts a batch in the metrics.

    Attributes:
        function: The metric_fn.
        updates: The update ops of what it returned.
    """

    function: TracedHostFunction
    updates: list[Any]


def _split_metrics(
    metrics: TracedHostFunction | None,
) -> tuple[dict[str, Any], _MetricCounts | None]:
    values: dict[str, Any] = {GLOBAL_STEP: v1.train.get_global_step().read_value()}
    if metrics is None:
        return values, None
    of_metrics, updates = metric_ops.split(check_metrics(metrics.result))
    return {**of_metrics, **values}, _MetricCounts(metrics, tf.nest.flatten(updates))


def _for_one_core(counts: _MetricCounts | None) -> _MetricCounts | None:
    """Returns what counts the batch of a single core, `None` where metric_fn takes no such batch."""
    if counts is None:
        return None
    try:
        function = counts.function.for_one_core()
        _, updates = metric_ops.split(check_metrics(function.result))
    except Exception as error:  # Whatever a user's function does with a batch that is too small.
        _logger.info("metric_fn accepts only the batches of all cores together: %s", error)
        return None
    return _MetricCounts(function, tf.nest.flatten(updates))
