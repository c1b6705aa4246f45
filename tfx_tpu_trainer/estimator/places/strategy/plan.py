"""Plans training, evaluation and prediction under a `tf.distribute` strategy.

TPU v5e and newer (`TPUStrategy`) and `RunConfig(train_distribute=...)` run this way.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing import input_position
from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import SavedInput
from tfx_tpu_trainer.estimator._engine.evaluating import metric_ops
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import count_rows
from tfx_tpu_trainer.estimator._engine.reporting.gradients import FirstStepOfLoop
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook, leave_out_summaries
from tfx_tpu_trainer.estimator._engine.sessions import preemption
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator.places.host_functions import trace_host_function
from tfx_tpu_trainer.estimator.places.strategy.feed import StrategyFeed, spans_processes
from tfx_tpu_trainer.estimator.places.strategy.session import StrategySessionCreator, VariableAccess
from tfx_tpu_trainer.estimator.places.strategy.steps import BatchSteps, TrainingSteps
from tfx_tpu_trainer.estimator.places.strategy.tables import StrategyTables

v1 = tf.compat.v1
_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True)
class StrategyPlacement:
    """A template placed under a strategy."""

    # Its loss, predictions and the tensors of its host functions are placeholders of the replicas'
    # combined results.
    template: ModelTemplate
    hooks: tuple[v1.train.SessionRunHook, ...]
    session_creator: Callable[..., v1.train.SessionCreator]
    # Number of batches in a step of evaluation; `None` in other modes.
    batches: tf.Tensor | None = None
    # The input of training, if its position can be saved.
    saved_input: SavedInput | None = None
    # The summary of gradients that a hook has requested; `None` without a request.
    gradients: tf.Tensor | None = None
    # As in `TrainingPlan`.
    end_loop: Callable[[], None] | None = None
    agreed_stop: v1.train.SessionRunHook | None = None


class _StrategyInput:
    """The iterator of a strategy's training; a `SavedInput`."""

    def __init__(self, steps: TrainingSteps, feed: StrategyFeed) -> None:
        self._steps = steps
        self.description = feed.description
        self.process = feed.pipeline.input_pipeline_id
        self.processes = feed.pipeline.num_input_pipelines

    def any_process(self, flag: bool) -> bool:
        return self._steps.any_process(flag)[0] if self.processes > 1 else flag

    def save(self, session: v1.Session, path: str, *, policy: int) -> None:
        self._steps.with_iterator(
            lambda iterator: input_position.write(path, [iterator], self.description, policy=policy)
        )

    def check(self, session: v1.Session, path: str) -> None:
        self._steps.with_iterator(lambda iterator: input_position.read(path, 1))

    def restore(self, session: v1.Session, path: str) -> None:
        self._steps.with_iterator(
            lambda iterator: input_position.restore([iterator], input_position.read(path, 1))
        )

    def start(self, session: v1.Session) -> None:
        self._steps.start_input()


class AgreedStopHook(v1.train.SessionRunHook):
    """Stops a strategy's processes together, when a hook or a signal stops one; must be the last hook."""

    # A process that stopped alone would leave the others waiting for its part of a sum.

    def __init__(self, steps: TrainingSteps) -> None:
        self._steps = steps

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Exchanges requests to stop with the other processes."""
        # As flags, one for each signal, since the processes exchange only sums.
        asked = preemption.signal_received()
        stops, *signals = self._steps.any_process(
            run_context.stop_requested, *(number == asked for number in preemption.SIGNALS)
        )
        for number, received in zip(preemption.SIGNALS, signals):
            if received:
                preemption.ask_to_stop(number)
        if stops or any(signals):
            run_context.request_stop()


def place_training_under_strategy(
    template: ModelTemplate,
    feed: StrategyFeed,
    *,
    iterations: tf.Variable | None = None,
    host_call_every_n_steps: int = 1,
    gradients: FirstStepOfLoop | None = None,
    tables: StrategyTables | None = None,
) -> StrategyPlacement:
    """Places training under a strategy; sums over replicas keep their variables equal."""
    leave_out_summaries()
    replicas = feed.strategy.num_replicas_in_sync
    host_call = trace_host_function(template.host_call, cores=replicas, broadcast=False, full=False)
    in_several = spans_processes(feed.strategy)
    if in_several and host_call is not None:
        raise ValueError(
            "host_call can't see the replicas of other processes, but "
            f"{named_with_replicas(feed.strategy)} has some there. Leave host_call out, or train in "
            "one process."
        )
    steps = TrainingSteps(
        template,
        feed,
        host_call=host_call,
        iterations=iterations,
        host_call_every_n_steps=host_call_every_n_steps,
        gradients=gradients,
        tables=tables,
    )
    loss, *summaries = steps.outputs
    # One placeholder replaces both loss and train_op: when a session needs its value, the strategy
    # runs the steps.
    placed = dataclasses.replace(template, loss=loss, train_op=loss, host_call=None)
    # Each step runs the host call itself; the hook opens and flushes its writers.
    hooks = () if host_call is None else (HostCallHook([]),)
    saved_input = _StrategyInput(steps, feed) if feed.is_saved else None
    return StrategyPlacement(
        placed,
        hooks,
        _session_creator(steps),
        saved_input=saved_input,
        gradients=summaries[0] if summaries else None,
        end_loop=steps.end_loop,
        agreed_stop=AgreedStopHook(steps) if in_several else None,
    )


def place_evaluation_under_strategy(
    template: ModelTemplate, feed: StrategyFeed, *, tables: StrategyTables | None = None
) -> StrategyPlacement:
    """Places evaluation under a strategy, exact to the last row."""
    # A session call runs one step: a batch on each replica. Short batches, and those left over at
    # the end, run one by one in the session, on this host. The functions of eval_metrics run on
    # this host, on the tensors of all replicas; the model's own metrics (eval_metric_ops) count on
    # each replica and are added up.
    values, updates = metric_ops.split(template.eval_metric_ops)
    functions = [template.eval_metrics, template.host_call]
    rows = count_rows(template.features, template.labels)
    gathered = [
        tensor for function in functions if function for tensor in tf.nest.flatten(function.tensors)
    ]
    steps = BatchSteps(
        feed,
        averaged=[template.loss],
        summed=[] if rows is None else [rows],
        gathered=gathered,
        effects=tf.nest.flatten(updates),
        graph=template.graph,
        tables=tables,
    )
    outputs = iter(steps.outputs)
    loss = next(outputs)
    # Rows are counted by the features, so these are rows without content.
    features = None if rows is None else tf.zeros([next(outputs)], tf.bool)
    eval_metrics, host_call = (
        function and _with_tensors(function, outputs) for function in functions
    )
    # The replicas update the metrics in the step that computes the loss: after it, the update ops
    # have nothing left to do.
    with tf.control_dependencies([loss]):
        counted = tf.no_op()
    placed = dataclasses.replace(
        template,
        features=features,
        labels=None,
        loss=loss,
        eval_metrics=eval_metrics,
        eval_metric_ops={name: (value, counted) for name, value in values.items()},
        host_call=None,
    )
    hooks = () if host_call is None else (HostCallHook(host_call()),)
    return StrategyPlacement(placed, hooks, _session_creator(steps), steps.batches)


def place_prediction_under_strategy(
    template: ModelTemplate,
    predictions: Any,
    feed: StrategyFeed,
    *,
    tables: StrategyTables | None = None,
) -> StrategyPlacement:
    """Places prediction under a strategy: one result for each row, in the order of the input."""
    host_call = template.host_call
    steps = BatchSteps(
        feed,
        averaged=[],
        summed=[],
        gathered=tf.nest.flatten([predictions, host_call.tensors if host_call else []]),
        effects=[],
        graph=template.graph,
        tables=tables,
    )
    outputs = iter(steps.outputs)
    placed = dataclasses.replace(
        template,
        predictions=tf.nest.map_structure(lambda _: next(outputs), predictions),
        host_call=None,
    )
    hooks = () if host_call is None else (HostCallHook(_with_tensors(host_call, outputs)()),)
    return StrategyPlacement(placed, hooks, _session_creator(steps))


def named_with_replicas(strategy: tf.distribute.Strategy) -> str:
    """Describes a strategy for a message."""
    return f"{type(strategy).__name__} ({strategy.num_replicas_in_sync} replicas)"


def _with_tensors(function: HostFunction, tensors: Iterator[tf.Tensor]) -> HostFunction:
    """Returns the same function with other tensors, taken from an iterator."""
    return dataclasses.replace(
        function, tensors=tf.nest.map_structure(lambda _: next(tensors), function.tensors)
    )


def _session_creator(steps: Any) -> Callable[..., v1.train.SessionCreator]:
    access = VariableAccess(steps.handles)

    def create(*, master: str = "", **options: Any) -> StrategySessionCreator:
        del master  # The strategy has the cluster; the session is on this host.
        return StrategySessionCreator(steps, access, **options)

    return create
