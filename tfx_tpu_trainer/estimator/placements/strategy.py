"""A call under a `tf.distribute` strategy: `RunConfig(train_distribute=..., ...)`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private, tf_private_strategy
from tfx_tpu_trainer.engine.checking.ops_on_emulated_cores import refuse_ops_that_end_the_process
from tfx_tpu_trainer.engine.checking.train_op_check import (
    check_gradients_are_combined,
    check_train_op,
)
from tfx_tpu_trainer.engine.checkpointing.savers import ObjectScaffold
from tfx_tpu_trainer.engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.engine.copying.seeded_draws import draw_by_step
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.evaluating.host_evaluation import plan_evaluation_on_host
from tfx_tpu_trainer.engine.feeding.strategy_feed import StrategyFeed, is_elsewhere, spans_processes
from tfx_tpu_trainer.engine.loops.loop_hook import Loops
from tfx_tpu_trainer.engine.loops.step_loop import create_iterations
from tfx_tpu_trainer.engine.placement.strategy import (
    place_evaluation_under_strategy,
    place_prediction_under_strategy,
    place_training_under_strategy,
)
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.reporting.gradients import (
    Asked,
    FirstStepOfLoop,
    add_histograms_of_weights,
    find_gradients,
    log_no_gradients,
    log_not_written,
)
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.training.training import TrainingPlan
from tfx_tpu_trainer.estimator import strategy_kinds
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.on_cores import on_cores
from tfx_tpu_trainer.estimator.placements.placement import (
    Call,
    Hooks,
    Trace,
    asked_of,
    gradient_hook,
)
from tfx_tpu_trainer.estimator.predicted_rows import select_predictions
from tfx_tpu_trainer.estimator.run_config import RunConfig

v1 = tf.compat.v1

_SCAFFOLD_PARTS = (
    "init_op",
    "init_fn",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
    "saver",
)


@dataclasses.dataclass(frozen=True)
class StrategyTrace(Trace):
    """A call that was traced for one replica of a strategy.

    Attributes:
        feed: Returns each replica its batches.
    """

    feed: StrategyFeed


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnderStrategy:
    """A `Placement` under a `tf.distribute` strategy.

    Attributes:
        call: The call. Its input_fn is called with the context of a worker, once for each worker;
            its dataset's batch is one replica's. Its model_fn is called with one replica's
            features and labels.
        strategy: The strategy.
        added: What the params of both functions have besides. Defaults to nothing.
        sees_strategy: Whether model_fn is a program for strategies: `tf.distribute` shows it the
            replicas, and its optimizers put gradients together over them. One for TPU cores wraps
            its optimizer in a `CrossShardOptimizer`. Defaults to `True`.
        loops: How many steps of training a session call makes. Defaults to `None`, one.
    """

    call: Call
    strategy: tf.distribute.Strategy
    added: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sees_strategy: bool = True
    loops: Loops | None = None

    def trace(self) -> StrategyTrace:
        """Calls model_fn once, on placeholders of one replica.

        Raises:
            ValueError: If model_fn brings a Scaffold.
        """
        call, strategy = self.call, self.strategy
        feed = StrategyFeed(
            strategy,
            lambda context: call.call_input_fn(self.added, context),
            repeated=call.mode == ModeKeys.TRAIN,
            saved=call.config.save_input_position,
        )
        features, labels = feed.make_placeholders()
        labels = None if call.mode == ModeKeys.PREDICT else labels
        replicas = strategy.num_replicas_in_sync
        with contextlib.ExitStack() as stack:
            stack.enter_context(tf_private.replicas(replicas))
            stack.enter_context(on_cores())
            if self.sees_strategy:
                traced = tf_private_strategy.TracedStrategy(replicas)
                stack.enter_context(traced.tracing(feed.replica_id))
            spec = call.call_model_fn(features, labels, self.added)
        template = spec.as_template(mode=call.mode, features=features, labels=labels)
        if call.mode == ModeKeys.TRAIN and call.config.save_input_position:
            draw_by_step(template)
        if not type(strategy).__name__.startswith("TPUStrategy"):
            refuse_ops_that_end_the_process(template)
        scaffold = template.make_scaffold()
        given = [part for part in _SCAFFOLD_PARTS if getattr(scaffold, part) is not None]
        if given and not isinstance(scaffold, ObjectScaffold):
            raise ValueError(
                f"A Scaffold with {given} can't be used under {_named(strategy)}, a tf.distribute "
                "strategy, whose variables do not belong to a session. Leave scaffold "
                "(scaffold_fn) out, or train without the strategy."
            )
        template = dataclasses.replace(template, make_scaffold=lambda: scaffold)
        return StrategyTrace(template, [], feed)

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training; see `Placement`.

        Raises:
            ValueError: If model_fn brings a Scaffold, or several replicas train without a sum over
                them.
        """
        trace = self.trace()
        trains = check_train_op(trace.template)
        if self.strategy.num_replicas_in_sync > 1 and trains:
            self._check_replicas_train_together(trace.template.graph)
        asked = asked_of(self.call.config)
        gradients = self._watched_gradients(trace.template, asked) if asked else None
        stop_hook: v1.train.SessionRunHook | None = None
        if self.loops is None:
            iterations, longest, every = None, 1, 1
            if steps is not None or max_steps is not None:
                stop_hook = v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps)
        else:
            iterations = create_iterations()
            longest, every = self.loops.longest, self.loops.host_call_every_n_steps
            stop_hook = self.loops.hook(iterations, steps=steps, max_steps=max_steps)
        placed = place_training_under_strategy(
            trace.template,
            trace.feed,
            iterations=iterations,
            host_call_every_n_steps=every,
            gradients=gradients,
        )
        hooks = list(placed.hooks)
        if gradients is not None:
            assert placed.gradients is not None
            hooks.append(gradient_hook(gradients, placed.gradients, self.call.config))
            if asked.histograms:
                add_histograms_of_weights(placed.template, after=placed.template.loss)
        plan = TrainingPlan(
            template=placed.template,
            train_op=placed.template.train_op,
            loss=placed.template.loss,
            stop_hook=stop_hook,
            steps_per_call=longest,
            session_creator=placed.session_creator,
            saved_input=placed.saved_input,
            end_loop=placed.end_loop,
            agreed_stop=placed.agreed_stop,
            ran_on=_named(self.strategy),
        )
        return plan, hooks

    def plan_evaluation(self, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
        """Plans an evaluation, a step of all replicas in each session call; see `Placement`.

        Its `loss` is the mean of the batch losses, as on the host.

        Raises:
            ValueError: If the strategy has replicas in other processes.
        """
        self._check_in_this_process()
        trace = self.trace()
        placed = place_evaluation_under_strategy(trace.template, trace.feed)
        plan = plan_evaluation_on_host(placed.template, steps=steps, batches=placed.batches)
        plan = dataclasses.replace(
            plan,
            make_loop=None,
            session_creator=placed.session_creator,
            ran_on=_named(self.strategy),
        )
        return plan, list(placed.hooks)

    def plan_prediction(
        self, predict_keys: Sequence[str] | str | None
    ) -> tuple[PredictionPlan, Hooks]:
        """Plans a prediction, a step of all replicas in each session call; see `Placement`.

        Raises:
            ValueError: If the strategy has replicas in other processes.
        """
        self._check_in_this_process()
        trace = self.trace()
        predictions = select_predictions(trace.template.predictions, predict_keys)
        placed = place_prediction_under_strategy(trace.template, predictions, trace.feed)
        plan = PredictionPlan(
            placed.template, placed.template.predictions, session_creator=placed.session_creator
        )
        return plan, list(placed.hooks)

    def _watched_gradients(self, template: ModelTemplate, asked: Asked) -> FirstStepOfLoop | None:
        if is_elsewhere(self.strategy) or spans_processes(self.strategy):
            # From a TPU they would come with every step, and processes must all make the same sums.
            log_not_written(_named(self.strategy))
            return None
        gradients = find_gradients(template, replicas=self.strategy.num_replicas_in_sync)
        if not gradients:
            log_no_gradients()
            return None
        return FirstStepOfLoop(gradients, asked)

    def _check_replicas_train_together(self, graph: tf.Graph) -> None:
        if not self.sees_strategy:
            check_gradients_are_combined(graph)
        elif not any(op.type == SUM for op in graph.get_operations()):
            raise ValueError(
                f"The train_op of model_fn has no sum over the replicas of {_named(self.strategy)},"
                " so each would train on its own. Let an optimizer of tf.compat.v1.train or "
                "tf.keras.optimizers.legacy apply the gradients, or sum them with "
                "tf.distribute.get_replica_context().all_reduce('SUM', gradients)."
            )

    def _check_in_this_process(self) -> None:
        if spans_processes(self.strategy):
            raise ValueError(
                f"{_named(self.strategy)} has replicas in other processes, but only training runs "
                "over several processes. Leave eval_distribute out of RunConfig, or add an "
                "evaluator task for train_and_evaluate."
            )


def strategy_of(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
    """Returns the strategy that runs the steps of a mode, as a configuration has it.

    As in the original, prediction has none. `experimental_distribute` wins over the others. A
    parameter server strategy leaves the steps to each worker's own session.

    Raises:
        ValueError: If it is a parameter server strategy with several replicas in this process, or
            trains in this process only while TF_CONFIG has several that train.
    """
    strategy = _configured(config, mode)
    if strategy_kinds.is_none(strategy):
        return None
    if strategy_kinds.is_parameter_server(strategy):
        _check_one_replica(strategy)
        return None
    if mode == ModeKeys.TRAIN:
        _check_cluster(config, strategy)
    return strategy


def input_context_of(config: RunConfig, mode: str) -> tf.distribute.InputContext | None:
    """Returns what an input_fn may know of the other workers of a parameter server strategy.

    `None` where there is no such strategy.
    """
    if not strategy_kinds.is_parameter_server(_configured(config, mode)):
        return None
    if mode != ModeKeys.TRAIN or not config.cluster_spec.jobs:
        return tf.distribute.InputContext()
    return tf.distribute.InputContext(
        num_input_pipelines=config.num_worker_replicas,
        input_pipeline_id=config.global_id_in_cluster,
    )


def _configured(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
    name = {ModeKeys.TRAIN: "train_distribute", ModeKeys.EVAL: "eval_distribute"}.get(mode)
    if name is None:
        return None
    both = config.experimental_distribute
    return getattr(both, name, None) or getattr(config, name)


def _check_cluster(config: RunConfig, strategy: tf.distribute.Strategy) -> None:
    if config.num_worker_replicas > 1 and not spans_processes(strategy):
        raise ValueError(
            f"{_named(strategy)} covers only this process, but the cluster of TF_CONFIG has "
            f"{config.num_worker_replicas} tasks that train: {config.cluster_spec.as_dict()}. Use "
            "tf.distribute.MultiWorkerMirroredStrategy, created before anything else runs, or "
            "tf.compat.v1.distribute.experimental.ParameterServerStrategy; or leave TF_CONFIG "
            "out."
        )


def _check_one_replica(strategy: tf.distribute.Strategy) -> None:
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"{type(strategy).__name__} has {strategy.num_replicas_in_sync} replicas in this "
            "process, one for each GPU. A worker of a parameter server strategy may have only "
            "one: let it see one GPU (CUDA_VISIBLE_DEVICES), or use CentralStorageStrategy or "
            "MirroredStrategy in one process."
        )


def _named(strategy: tf.distribute.Strategy) -> str:
    return f"{type(strategy).__name__} ({strategy.num_replicas_in_sync} replicas)"
