"""Plans evaluations on this host: a batch in each session call that hooks must see, else many."""

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation_plan import (
    GLOBAL_STEP,
    LOSS,
    SECONDS_PER_CALL,
    EvaluationLoop,
    EvaluationPlan,
    EvaluationSums,
    StopAfterLastBatchHook,
    check_metrics,
    clock,
    create_eval_step,
    is_time_up,
    log_progress,
)
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import count_rows
from tfx_tpu_trainer.estimator._engine.graph_optimizer import decided_on_cpu
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import is_small
from tfx_tpu_trainer.estimator._engine.loops.step_loop import (
    IN_CALLERS_THREAD,
    copy_with_direct_draws,
)
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1


class StopAfterBatchesHook(v1.train.SessionRunHook):
    """Counts batches in the graph's eval step, one per session call, and stops after the last."""

    def __init__(self, eval_step: tf.Variable, *, steps: int | None) -> None:
        self._increment = eval_step.assign_add(1, read_value=True)
        self._steps = steps

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        """Adds the counter to the call."""
        return v1.train.SessionRunArgs(self._increment)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Logs the batch, and stops after the last one."""
        log_progress(run_values.results, before=run_values.results - 1, steps=self._steps)
        if self._steps is not None and run_values.results >= self._steps:
            run_context.request_stop()


def plan_evaluation_on_host(
    template: ModelTemplate, *, steps: int | None, batches: tf.Tensor | None = None
) -> EvaluationPlan:
    """Plans an evaluation on this host, a batch in each session call."""
    built = dict(template.eval_metric_ops)
    if template.eval_metrics is not None:
        built.update(check_metrics(template.eval_metrics()))
    check_metrics(built)
    values, updates = metric_ops.split(
        {**built, LOSS: v1.metrics.mean(template.loss, weights=batches)}
    )
    values[GLOBAL_STEP] = v1.train.get_global_step().read_value()
    sums = EvaluationSums()
    counted = sums.add(loss=template.loss, rows=count_rows(template.features, template.labels))
    eval_step = create_eval_step()
    update_op = tf.group(*tf.nest.flatten(updates), *counted)

    def make_loop(local: bool) -> EvaluationLoop:
        # Handing small ops to other threads takes longer than running them.
        direct = local and is_small([update_op])
        all_done = _build_loop(
            template,
            update_op,
            eval_step=eval_step,
            steps=steps,
            seconds=SECONDS_PER_CALL,
            direct=direct,
        )
        return EvaluationLoop(
            all_done=all_done,
            stop_hook=StopAfterLastBatchHook(eval_step, all_done, steps=steps),
            options=IN_CALLERS_THREAD if direct else None,
        )

    return EvaluationPlan(
        template=template,
        update_op=update_op,
        values=values,
        sums=sums,
        stop_hook=StopAfterBatchesHook(eval_step, steps=steps),
        make_loop=make_loop,
    )


def _build_loop(
    template: ModelTemplate,
    update_op: tf.Operation,
    *,
    eval_step: tf.Variable,
    steps: int | None,
    seconds: float,
    direct: bool,
) -> tf.Tensor:
    """Makes a tensor that runs batches of an evaluation when fetched, and is true after the last."""
    copier = GraphCopier(template.graph)

    def one_batch(number: tf.Tensor) -> list[tf.Tensor]:
        if direct:
            (updated,) = copy_with_direct_draws(copier, [update_op], name="batch")
        else:
            (updated,) = copier.copy([Fetch(0, update_op)], replaced=[{}], name="batch")
        with tf.control_dependencies([updated]):
            counted = eval_step.assign_add(1, read_value=False)
        with tf.control_dependencies([counted]):
            return [number + 1]

    def batches() -> tf.Tensor:
        before = eval_step.read_value()
        with decided_on_cpu():
            started = clock()
            # A call counts its own batches, in int32, which loops keep on the host.
            left = tf.constant(1, tf.int64) if steps is None else steps - before
            left = tf.cast(tf.minimum(left, tf.int32.max), tf.int32)

        def all_done(number: tf.Tensor) -> tf.Tensor:
            # Without a number of steps, the end of the input ends the session, by an error.
            return tf.constant(False) if steps is None else number >= left

        def goes_on(number: tf.Tensor) -> tf.Tensor:
            with decided_on_cpu():
                return tf.logical_not(tf.logical_or(all_done(number), is_time_up(started, seconds)))

        done = tf.while_loop(goes_on, one_batch, [tf.constant(0)], parallel_iterations=1)
        return all_done(done[0])

    return tf.function(batches, autograph=False)()
