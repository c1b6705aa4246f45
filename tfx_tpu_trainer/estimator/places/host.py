"""Runs a call on this host, for an Estimator or a TPUEstimator with `use_tpu=False`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
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
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    InputTensors,
    as_input_tensors,
    count_rows,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import VariableChanges, upstream
from tfx_tpu_trainer.estimator._engine.graph_optimizer import decided_on_cpu
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import is_small
from tfx_tpu_trainer.estimator._engine.loops.step_loop import (
    IN_CALLERS_THREAD,
    copy_with_direct_draws,
)
from tfx_tpu_trainer.estimator._engine.prediction import PredictionPlan, select_predictions
from tfx_tpu_trainer.estimator._engine.reporting.gradients import add_to_summaries
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan, plan_training
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator.places.one_core import OneCoreGraphHook, addend, bypass_sums
from tfx_tpu_trainer.estimator.places.place import Call, Hooks, Trace, asked_of
from tfx_tpu_trainer.estimator.places.refused_ops import refuse_ops_that_end_the_process
from tfx_tpu_trainer.estimator.places.stateless_random import draw_by_step

v1 = tf.compat.v1

_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnHost:
    """A `Place` on this host, which runs whole batches."""

    call: Call
    # For input_fn; `None` if there are no other workers.
    input_context: tf.distribute.InputContext | None = None
    # Whether to warn of a prediction whose input never ends.
    warns_of_endless_input: bool = True

    def trace(self) -> Trace:
        """Calls input_fn and model_fn, and adapts the template to this host."""
        mode = self.call.mode
        inputs = self.read_input()
        if mode == ModeKeys.PREDICT and self.warns_of_endless_input:
            _warn_of_endless_input(inputs)
        if mode != ModeKeys.TRAIN:
            inputs = inputs.with_hidden_batches()
        labels = None if mode == ModeKeys.PREDICT else inputs.labels
        spec = self.call.call_model_fn(inputs.features, labels, {})
        template = spec.as_template(mode=mode, features=inputs.features, labels=labels)
        step = None
        if mode == ModeKeys.TRAIN:
            self.look_at(template)
            step = _random_draws_by_step(template, self.call.config)
        template, place_hooks = place_on_host(template, read_before_changes=step)
        return Trace(template, [*inputs.hooks, *place_hooks])

    def read_input(self) -> InputTensors:
        """Calls input_fn."""
        return as_input_tensors(self.call.call_input_fn({}, self.input_context))

    def look_at(self, template: ModelTemplate) -> None:
        """Receives a training's traced model."""

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training; see `Place`."""
        trace = self.trace()
        if self.call.config.cluster_spec.jobs and self.call.config.master:
            check_runs_in_cluster(trace.template.graph)
        if asked := asked_of(self.call.config):
            add_to_summaries(trace.template, asked)
        plan = plan_training(trace.template, steps=steps, max_steps=max_steps)
        return plan, trace.hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation; see `Place`."""
        trace = self.trace()
        return plan_evaluation_on_host(trace.template, steps=steps), trace.hooks

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction; see `Place`."""
        trace = self.trace()
        predictions = select_predictions(trace.template.predictions, predict_keys)
        return PredictionPlan(trace.template, predictions), trace.hooks


def _random_draws_by_step(template: ModelTemplate, config: RunConfig) -> tf.Tensor | None:
    """Makes random ops draw by the global step, if a training that resumes or XLA needs it."""
    if not (config.save_input_position or config.jit_compile):
        return None
    # TensorFlow rejects unseeded ops while ops must be deterministic, and must still do so.
    unseeded = bool(config.jit_compile) and not tf_private.is_op_determinism_enabled()
    return draw_by_step(template, unseeded=unseeded)


def _warn_of_endless_input(inputs: InputTensors) -> None:
    flat = tf.nest.flatten(inputs.features)
    ends = inputs.iterator is not None or any(
        isinstance(leaf, tf.Tensor) and leaf.op.type == "IteratorGetNext" for leaf in flat
    )
    if not ends and not v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS):
        _logger.warning(
            "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means "
            "predict yields forever. This is probably a mistake."
        )


def place_on_host(
    template: ModelTemplate, *, read_before_changes: tf.Tensor | None = None
) -> tuple[ModelTemplate, list[v1.train.SessionRunHook]]:
    """Adapts a template to one host: replaces sums over cores, and runs the host_call in every step."""
    refuse_ops_that_end_the_process(template)
    hooks: list[v1.train.SessionRunHook] = []
    if any(op.type == SUM for op in template.graph.get_operations()):
        # The sums stay in the graph, unread, but in no file of it.
        hooks.append(OneCoreGraphHook(cores=1))
    bypass_sums(template.graph)
    template = dataclasses.replace(
        template,
        loss=_without_sums(template.loss),
        predictions=_without_sums(template.predictions),
        eval_metrics=_with_addends(template.eval_metrics),
        eval_metric_ops=_without_sums(template.eval_metric_ops),
        host_call=_with_addends(template.host_call),
    )
    if read_before_changes is not None:
        _let_reads_come_first(template.graph, [read_before_changes], train_op=template.train_op)
    if template.host_call is None:
        return template, hooks
    fetched = template.host_call()
    # Again, for the ops that host_call has made.
    refuse_ops_that_end_the_process(dataclasses.replace(template, predictions=fetched))
    if template.train_op is not None:
        _let_reads_come_first(template.graph, fetched, train_op=template.train_op)
    return template, [*hooks, HostCallHook(fetched)]


def check_runs_in_cluster(graph: tf.Graph) -> None:
    """Checks that another process's session can run a graph, for which each node needs a kernel."""
    for op in graph.get_operations():
        if op.type == SUM:
            raise ValueError(
                f"{op.name!r} is a sum over TPU cores (CrossReplicaSum), which can't run in the "
                "processes of a TF_CONFIG cluster: wrap the optimizer in CrossShardOptimizer only "
                "if params['use_tpu'] is true."
            )


# The values that a host_call sees. The problem: a model_fn that returns
#   train_op=w.assign_sub(0.1 * g), host_call=(log, [w.read_value()])
# does not set the order of the two, and a session runs whichever is ready first. On cores, where
# they are in a function, the read comes first (`reads_before_changes`), and so it must here. The
# idea: give each change of a variable in the step a control edge from each of these reads. The
# invariant is that no edge closes a cycle: a read that waits for some change, however far up, is
# left alone (`waiting`), since its author has set the order. One pass finds these reads, since an
# op is made after what it waits for.
def _let_reads_come_first(graph: tf.Graph, fetched: Any, *, train_op: Any) -> None:
    """Makes a step's changes of variables wait for reads of them that do not wait for a change."""
    kinds = (tf.Operation, tf.Tensor, tf.Variable)
    flat = tf.nest.flatten(fetched, expand_composites=True)
    wanted = [graph.as_graph_element(node) for node in flat if isinstance(node, kinds)]
    needed = set(upstream(wanted))
    of_step = set(upstream([graph.as_graph_element(train_op)]))
    if any(op.type == "Enter" for op in needed):
        # No op outside of a loop of TensorFlow 1 can wait for one inside.
        return
    changes = VariableChanges(graph.as_graph_def().library)
    changing, waiting = [], set[tf.Operation]()
    readers: dict[str, list[tf.Operation]] = {}
    for op in graph.get_operations():
        if op not in needed and op not in of_step:
            continue
        if changes.made_by(op.node_def):
            changing.append(op)
            waiting.add(op)
        elif not waiting.isdisjoint([*(tensor.op for tensor in op.inputs), *op.control_inputs]):
            waiting.add(op)
        elif op in needed:
            for handle in _handles(op):
                readers.setdefault(handle, []).append(op)
    for op in changing:
        reads = [read for handle in _handles(op) for read in readers.get(handle, ())]
        if op in of_step and reads:
            done = [end for read in reads for end in _ends(read)]
            tf_private.replace_control_inputs(op, [*op.control_inputs, *done])


def _ends(op: tf.Operation) -> list[tf.Operation]:
    """Returns the ops to wait for until an operation's reads are done."""
    # A call or a conditional is inlined when it runs, and then only a wait for its results covers the reads in it.
    if op.type == "ReadVariableOp":
        return [op]
    return [tf.identity(result).op for result in op.outputs if result.dtype != tf.resource]


def _handles(op: tf.Operation) -> list[str]:
    return [tensor.name for tensor in op.inputs if tensor.dtype == tf.resource]


def _without_sums(structure: Any) -> Any:
    """Replaces the sums among a template's results by their addends."""
    return tf.nest.map_structure(addend, structure)


def _with_addends(function: HostFunction | None) -> HostFunction | None:
    if function is None:
        return None
    return dataclasses.replace(function, tensors=_without_sums(function.tensors))


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
