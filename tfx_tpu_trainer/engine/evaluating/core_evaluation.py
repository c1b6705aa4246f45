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
    same template, unpadded, so that a metric_fn need not know of padding: a short batch whole;
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
    sums, eval_step = EvaluationSums(), create_eval_step()
    # Of batches that are one each for a core, those of the last step may not suffice for all.
    may_lack = feed.always_full and len(feed.draws()) > 1
    full = feed.always_full and not may_lack
    metrics = trace_host_function(
        template.eval_metrics, cores=cores, broadcast=broadcast, full=feed.always_full
    )
    host_call = trace_host_function(template.host_call, cores=cores, broadcast=broadcast, full=full)
    values, counts = _split_metrics(metrics)
    counts_of_one = _for_one_core(counts) if may_lack else counts
    left_out = create_left_out() if counts is not None and counts_of_one is None else None
    copier = GraphCopier(template.graph)

    step = _BatchStep(template, copier, for_cores(copier), [metrics, host_call], cores=cores)

    def count_batch(
        outputs: list[tf.Tensor], rows: tf.Tensor, counts: _MetricCounts | None = counts
    ) -> tf.Tensor:
        loss, (metric_tensors, host_tensors) = step.unpack(outputs)
        effects = sums.add(loss=loss, rows=rows)
        if counts is not None:
            effects += counts.function.copy(copier, metric_tensors, counts.updates, name="metrics")
        if host_call is not None:
            effects.append(host_call.run(copier, host_tensors, name="host_call"))
        with tf.control_dependencies(effects):
            return tf.constant(1)

    def count_rest(drawn: DrawnBatches) -> tf.Tensor:
        if not feed.always_full:
            return count_batch(step.on_one(feed.whole(drawn)), drawn.total_rows)
        if left_out is not None:
            more = tf.cast(drawn.total_rows, left_out.dtype)
            with tf.control_dependencies([left_out.assign_add(more, read_value=False)]):
                return tf.constant(0)
        rows = feed.full_rows()

        def count_piece(index: tf.Tensor) -> tf.Tensor:
            outputs = step.on_one(feed.piece(drawn, index))
            return index + count_batch(outputs, tf.constant(rows), counts_of_one)

        pieces = drawn.total_rows // rows
        (counted,) = tf.while_loop(lambda index: index < pieces, lambda i: (count_piece(i),), [0])
        return tf.minimum(counted, 1)

    def run_batch(drawn: DrawnBatches) -> tf.Tensor:
        def count_full() -> tf.Tensor:
            return count_batch(step.on_cores(feed.cut_full(drawn)), drawn.total_rows)

        if full:
            counted = count_full()
        else:
            counted = tf.cond(feed.is_full(drawn), count_full, lambda: count_rest(drawn))
        with tf.control_dependencies([counted]):
            incremented = eval_step.assign_add(tf.cast(counted, tf.int64), read_value=False)
        with tf.control_dependencies([incremented]):
            return tf.identity(counted)

    def one_batch(count: tf.Tensor, ended: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del ended
        drawn = feed.draw(copier)
        done = tf.cond(drawn.total_rows > 0, lambda: run_batch(drawn), lambda: tf.constant(0))
        return count + done, drawn.ended

    def batches(seconds: tf.Tensor) -> tf.Tensor:
        started = tf.timestamp()

        def all_done(count: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return ended if steps is None else tf.logical_or(ended, count >= steps)

        def goes_on(count: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return tf.logical_not(
                tf.logical_or(all_done(count, ended), is_time_up(started, seconds))
            )

        start = (tf.cast(eval_step.read_value(), tf.int32), tf.constant(False))
        return all_done(*tf.while_loop(goes_on, one_batch, start, parallel_iterations=1))

    seconds = v1.placeholder_with_default(
        tf.constant(SECONDS_PER_CALL if steps is None else math.inf, tf.float64),
        (),
        name="seconds_per_call",
    )
    all_done = tf.function(batches, autograph=False)(seconds)
    return EvaluationPlan(
        template=template,
        update_op=all_done,
        seconds_per_call=seconds,
        values={**values, LOSS: sums.loss_by_rows(template.loss_dtype)},
        sums=sums,
        stop_hook=StopAfterLastBatchHook(eval_step, all_done, steps=steps, left_out=left_out),
    )


class _BatchStep:
    """Runs one batch: loss and host tensors, from all cores or from one copy."""

    def __init__(
        self,
        template: ModelTemplate,
        copier: GraphCopier,
        cores_copier: CoreCopier,
        host_functions: list[TracedHostFunction | None],
        *,
        cores: int,
    ) -> None:
        self._template = template
        self._copier = copier
        self._cores_copier = cores_copier
        self._host_functions = host_functions
        self._cores = cores

    def on_cores(self, fed: list[dict[str, tf.Tensor]]) -> list[tf.Tensor]:
        fetches = [Fetch(core, self._template.loss) for core in range(self._cores)]
        parts = [[] if f is None else f.fetches() for f in self._host_functions]
        copies = self._cores_copier.copy(
            fetches + [fetch for part in parts for fetch in part], replaced=fed, name="cores"
        )
        outputs = [tf.add_n(copies[: self._cores]) / self._cores]
        start = self._cores
        for function, part in zip(self._host_functions, parts):
            if function is not None:
                outputs += function.gathered(copies[start : start + len(part)])
            start += len(part)
        return outputs

    def on_one(self, fed: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        tensors = [t for f in self._host_functions if f is not None for t in f.tensors]
        fetches = [Fetch(0, self._template.loss), *(Fetch(0, tensor) for tensor in tensors)]
        return self._copier.copy(fetches, replaced=[fed], name="short_batch", alone=True)

    def unpack(self, outputs: list[tf.Tensor]) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
        rest = iter(outputs[1:])
        return outputs[0], [
            [] if f is None else [next(rest) for _ in f.tensors] for f in self._host_functions
        ]


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
        _logger.info("metric_fn takes the batches of all cores only: %s", error)
        return None
    return _MetricCounts(function, tf.nest.flatten(updates))
