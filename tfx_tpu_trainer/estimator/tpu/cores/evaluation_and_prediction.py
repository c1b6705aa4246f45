"""Evaluates and predicts on TPU cores, emulated or real, exactly to the last row."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier, ReplicaCopier
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import (
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
from tfx_tpu_trainer.estimator._engine.prediction import PredictionPlan
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator.places.host_functions import TracedHostFunction, trace_host_function
from tfx_tpu_trainer.estimator.tpu.cores.feed import DrawnBatches, FiniteFeed

v1 = tf.compat.v1


class CoreEvaluation:
    """An evaluation over cores, step by step in a loop of the graph: as many batches in one session call as fit."""

    # A number of steps is one call, as in the original, unless hooks must see each step. An evaluation to the end of
    # the input, which may be endless, makes a call each second.
    #
    # Full batches are cut over the cores. A short batch that is left for the last step runs whole on one copy of the
    # same template, unpadded, so a metric_fn needs no padding logic. If every batch is full, metric_fn sees static
    # shapes, as on a TPU: its tensors have the rows of all cores, and a rest that is not enough for all cores does not
    # count, as in the original.
    #
    # The methods' return values set the order: a branch of a conditional and the body of a loop return tensors, so each
    # returns the number of batches that it has counted, once they are.

    def __init__(
        self,
        template: ModelTemplate,
        feed: FiniteFeed,
        *,
        cores: int,
        broadcast: bool,
        steps: int | None,
        for_cores: Callable[[GraphCopier], ReplicaCopier],
    ) -> None:
        """Traces the functions of the host."""
        self._template = template
        self._feed = feed
        self._cores = cores
        self._steps = steps
        self._sums, self._eval_step = EvaluationSums(), create_eval_step()
        # If each core takes its own batch, the last step may have fewer batches than cores.
        may_lack = feed.always_full and len(feed.draws()) > 1
        self._left_out = create_left_out() if may_lack else None
        self._metrics, self._host_call = (
            trace_host_function(function, cores=cores, broadcast=broadcast, full=feed.always_full)
            for function in (template.eval_metrics, template.host_call)
        )
        self._values, self._updates = _split_metrics(self._metrics)
        self._copier = GraphCopier(template.graph)
        self._cores_copier = for_cores(self._copier)

    def plan(self) -> EvaluationPlan:
        """Makes the loop."""
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
        """Runs steps until all are done or the time is up; returns whether all are."""
        started = clock()

        def all_done(count: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return ended if self._steps is None else tf.logical_or(ended, count >= self._steps)

        def goes_on(count: tf.Tensor, ended: tf.Tensor) -> tf.Tensor:
            return tf.logical_not(
                tf.logical_or(all_done(count, ended), is_time_up(started, seconds))
            )

        # The count starts from the variable: a session call ends when its time is up, and the next one continues.
        # Iterations run one by one, since each draws from the same iterator; TensorFlow's while loop would otherwise
        # start up to ten before the first has ended.
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
            return self._count(self._on_cores(self._feed.cut_full(drawn)), drawn.total_rows)

        if self._feed.always_full and self._left_out is None:
            counted = count_full()
        else:
            is_full = self._feed.is_full(drawn)
            counted = tf.cond(is_full, count_full, lambda: self._count_rest(drawn))
        with tf.control_dependencies([counted]):
            incremented = self._eval_step.assign_add(tf.cast(counted, tf.int64), read_value=False)
        with tf.control_dependencies([incremented]):
            return tf.identity(counted)

    def _count_rest(self, drawn: DrawnBatches) -> tf.Tensor:
        """Counts the remaining rows of the last step on one copy of the template."""
        # `always_full` with several draws: a step needs four batches, one per core, and the input had three. Each is
        # full, but metric_fn expects the rows of four, so these rows are reported as left out instead of measured, as
        # on a TPU.
        if self._left_out is None:
            return self._count(self._on_one(self._feed.whole(drawn)), drawn.total_rows)
        more = tf.cast(drawn.total_rows, self._left_out.dtype)
        with tf.control_dependencies([self._left_out.assign_add(more, read_value=False)]):
            return tf.constant(0)

    def _count(self, outputs: list[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
        loss, of_metrics, of_host_call = self._unpacked(outputs)
        effects = self._sums.add(loss=loss, rows=rows)
        if self._metrics is not None:
            effects += self._metrics.copy(self._copier, of_metrics, self._updates, name="metrics")
        if self._host_call is not None:
            effects.append(self._host_call.run(self._copier, of_host_call, name="host_call"))
        with tf.control_dependencies(effects):
            return tf.constant(1)

    def _on_cores(self, fed: list[dict[str, tf.Tensor]]) -> list[tf.Tensor]:
        """Returns loss and host tensors of a full batch from all cores."""
        # Here and in `_on_one`, the outputs are [loss, tensors of the metrics, tensors of host_call]: both are branches
        # of one conditional, and `_unpacked` relies on this order.
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
        """Returns the same for a batch that runs on one copy."""
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


def _split_metrics(metrics: TracedHostFunction | None) -> tuple[dict[str, Any], list[Any]]:
    """Returns the metrics' values by name, including the global step, and their update ops."""
    values: dict[str, Any] = {GLOBAL_STEP: v1.train.get_global_step().read_value()}
    if metrics is None:
        return values, []
    of_metrics, updates = metric_ops.split(check_metrics(metrics.result))
    return {**of_metrics, **values}, tf.nest.flatten(updates)


_MAX_BYTES = 1 << 30


def plan_prediction_on_cores(
    template: ModelTemplate,
    predictions: Mapping[str, tf.Tensor],
    feed: FiniteFeed,
    is_padding: tf.Tensor,
    *,
    cores: int,
    broadcast: bool,
    for_cores: Callable[[GraphCopier], ReplicaCopier],
) -> PredictionPlan:
    """Plans predictions over cores, one batch per session call."""
    # With BROADCAST every core has all rows, so one core's predictions are enough.
    taken_from = range(1 if broadcast else cores)
    host_call = trace_host_function(template.host_call, cores=cores, broadcast=broadcast)
    copier = GraphCopier(template.graph)
    cores_copier = for_cores(copier)
    names = list(predictions)

    def one_batch() -> list[tf.Tensor]:
        drawn = feed.draw(copier)
        fed, masks = feed.cut_padded(drawn)
        for tensors, mask in zip(fed, masks):
            tensors[is_padding.name] = mask
        fetches = [Fetch(core, predictions[name]) for name in names for core in taken_from]
        count = len(fetches)
        fetches += [] if host_call is None else host_call.fetches()
        copies = cores_copier.copy(fetches, replaced=fed, name="cores")
        effects = []
        if host_call is not None:
            gathered = host_call.gathered(copies[count:])
            effects.append(host_call.run(copier, gathered, name="host_call"))
        is_real = tf.logical_not(tf.concat([masks[core] for core in taken_from], axis=0))
        n = len(taken_from)
        with tf.control_dependencies(effects):
            outputs = [
                _real_rows(tf.concat(copies[start : start + n], axis=0), is_real)
                for start in range(0, count, n)
            ]
            return [*outputs, tf.identity(drawn.total_rows)]

    *outputs, rows = tf.function(one_batch, autograph=False)()
    return PredictionPlan(template, dict(zip(names, outputs)), rows)


def _real_rows(prediction: tf.Tensor, is_real: tf.Tensor) -> tf.Tensor:
    """Cuts off the padding."""
    # A prediction whose first axis is not the rows is kept whole for a full batch, and cut to its first rows for a
    # padded one, as in the original; the error comes when rows are iterated.
    if prediction.shape[0] == is_real.shape[0]:
        return tf.boolean_mask(prediction, is_real)
    count = tf.reduce_sum(tf.cast(is_real, tf.int32))
    all_rows = tf.shape(prediction)[0]
    return prediction[: tf.where(tf.reduce_all(is_real), all_rows, count)]


def check_predictions(predictions: Any) -> None:
    """Checks that predictions can come from TPU cores.

    Raises:
        TypeError: If they are not a dict.
        ValueError: If one has no static batch, or they are too large for a transfer.
    """
    if not isinstance(predictions, Mapping):
        raise TypeError(
            f"TPUEstimatorSpec.predictions must be dict of Tensors; got {predictions!r}."
        )
    sizes = {}
    for name, tensor in predictions.items():
        if tensor.shape.rank == 0:
            raise ValueError(
                f"The tensor with key ({name}) in TPUEstimatorSpec.predictions must have the batch as its first "
                f"dimension, but is a scalar. Tensor: {tensor}. Repeat it for each row (tf.fill), or leave it out."
            )
        if tensor.shape.rank is None or tensor.shape[0] is None:
            raise ValueError(
                f"The tensor with key ({name}) in TPUEstimatorSpec.predictions has dynamic shape "
                f"(should be static). Tensor: {tensor}. Keep the batch as its first dimension."
            )
        known = [size or 1 for size in tensor.shape.as_list()]
        sizes[name] = math.prod(known) * tensor.dtype.size
    if sum(sizes.values()) >= _MAX_BYTES:
        shapes = {name: tuple(predictions[name].shape.as_list()) for name in sizes}
        raise ValueError(
            f"The predictions of a batch come to {sum(sizes.values())} bytes, which is too large "
            f"for a transfer from TPU (1 GiB): {shapes}. Return fewer of them, or use a smaller "
            "predict_batch_size."
        )
