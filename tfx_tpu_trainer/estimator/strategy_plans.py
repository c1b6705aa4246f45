"""Plans a call under a `tf.distribute` strategy: `RunConfig(train_distribute=..., ...)`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
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
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.evaluating.host_evaluation import plan_evaluation_on_host
from tfx_tpu_trainer.engine.feeding.strategy_feed import StrategyFeed, spans_processes
from tfx_tpu_trainer.engine.loops.loop_hook import LoopHook
from tfx_tpu_trainer.engine.loops.step_loop import create_iterations
from tfx_tpu_trainer.engine.placement.strategy import (
    place_evaluation_under_strategy,
    place_prediction_under_strategy,
    place_training_under_strategy,
)
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.training.training import TrainingPlan
from tfx_tpu_trainer.estimator import strategy_kinds
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.on_cores import on_cores
from tfx_tpu_trainer.estimator.predicted_rows import select_predictions
from tfx_tpu_trainer.estimator.run_config import RunConfig

v1 = tf.compat.v1

Hooks = list[v1.train.SessionRunHook]

_SCAFFOLD_PARTS = (
    "init_op",
    "init_fn",
    "ready_op",
    "ready_for_local_init_op",
    "local_init_op",
    "summary_op",
    "saver",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyCall:
    """A call of train, evaluate or predict under a strategy.

    Attributes:
        mode: One of `ModeKeys`.
        strategy: The strategy.
        call_input_fn: Calls input_fn with the context of a worker; called once for each worker.
            Its dataset's batch is one replica's.
        call_model_fn: Calls model_fn with one replica's features and labels.
        sees_strategy: Whether model_fn is a program for strategies: `tf.distribute` shows it the
            replicas, and its optimizers put gradients together over them. One for TPU cores wraps
            its optimizer in a `CrossShardOptimizer`. Defaults to `True`.
    """

    mode: str
    strategy: tf.distribute.Strategy
    call_input_fn: Callable[[tf.distribute.InputContext], Any]
    call_model_fn: Callable[[Any, Any], Any]
    sees_strategy: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loops:
    """Loops of steps in each session call.

    Attributes:
        length: Chooses the length of each loop.
        longest: The most steps that a loop has.
        periods: Periods whose multiples no loop runs past.
        host_call_every_n_steps: Steps of a loop between host calls.
    """

    length: Any
    longest: int
    periods: Sequence[int]
    host_call_every_n_steps: int


def strategy_of(config: RunConfig, mode: str) -> tf.distribute.Strategy | None:
    """Returns the strategy that runs the steps of a mode, as a configuration has it.

    As in the original, prediction has none. `experimental_distribute` wins over the others. A
    parameter server strategy leaves the steps to each worker's own session.

    Raises:
        ValueError: If it is a parameter server strategy with several replicas in this process.
    """
    strategy = _configured(config, mode)
    if strategy_kinds.is_none(strategy):
        return None
    if strategy_kinds.is_parameter_server(strategy):
        _check_one_replica(strategy)
        return None
    return strategy


def check_cluster(config: RunConfig, strategy: tf.distribute.Strategy) -> None:
    """Checks that a strategy trains with all the tasks that TF_CONFIG tells of.

    Raises:
        ValueError: If it is of one process, and TF_CONFIG has several that train.
    """
    if config.num_worker_replicas > 1 and not spans_processes(strategy):
        raise ValueError(
            f"{_named(strategy)} is of this process only, and the cluster of TF_CONFIG has "
            f"{config.num_worker_replicas} tasks that train: {config.cluster_spec.as_dict()}. Use "
            "tf.distribute.MultiWorkerMirroredStrategy, made before anything else runs, or "
            "tf.compat.v1.distribute.experimental.ParameterServerStrategy; or leave TF_CONFIG out."
        )


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


def _check_one_replica(strategy: tf.distribute.Strategy) -> None:
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"{type(strategy).__name__} has {strategy.num_replicas_in_sync} replicas in this "
            "process, one for each GPU. A worker of a parameter server strategy has one here: let "
            "it see one GPU (CUDA_VISIBLE_DEVICES), or use CentralStorageStrategy or "
            "MirroredStrategy in one process."
        )


def plan_training(
    call: StrategyCall, *, steps: int | None, max_steps: int | None, loops: Loops | None
) -> tuple[TrainingPlan, Hooks]:
    """Plans training.

    Args:
        call: The call, of mode `"train"`.
        steps: Steps to make now; excludes `max_steps`.
        max_steps: Global step to stop at.
        loops: How many steps a session call makes; `None` is one.

    Returns:
        The plan, and the hooks that the placement needs.

    Raises:
        ValueError: If model_fn brings a Scaffold, or several replicas train without a sum over
            them.
    """
    template, feed = _trace(call, repeated=True)
    trains = check_train_op(template)
    if call.strategy.num_replicas_in_sync > 1 and trains:
        _check_replicas_train_together(call, template.graph)
    iterations = None if loops is None else create_iterations()
    placed = place_training_under_strategy(
        template,
        feed,
        iterations=iterations,
        host_call_every_n_steps=1 if loops is None else loops.host_call_every_n_steps,
    )
    if loops is not None:
        assert iterations is not None
        stop_hook = LoopHook(
            iterations,
            length=loops.length,
            steps=steps,
            max_steps=max_steps,
            ends_at_multiples_of=loops.periods,
        )
    elif steps is None and max_steps is None:
        stop_hook = None
    else:
        stop_hook = v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps)
    plan = TrainingPlan(
        template=placed.template,
        train_op=placed.template.train_op,
        loss=placed.template.loss,
        stop_hook=stop_hook,
        steps_per_call=1 if loops is None else loops.longest,
        session_creator=placed.session_creator,
    )
    return plan, list(placed.hooks)


def plan_evaluation(call: StrategyCall, *, steps: int | None) -> tuple[EvaluationPlan, Hooks]:
    """Plans an evaluation, a step of all replicas in each session call.

    Args:
        call: The call, of mode `"eval"`.
        steps: Steps to evaluate; `None` goes to the end of the input.

    Returns:
        The plan, and the hooks that the placement needs. Its `loss` is the mean of the batch
        losses, as on the host.

    Raises:
        ValueError: If the strategy has replicas in other processes.
    """
    _check_in_this_process(call)
    placed = place_evaluation_under_strategy(*_trace(call, repeated=False))
    plan = plan_evaluation_on_host(placed.template, steps=steps, batches=placed.batches)
    plan = dataclasses.replace(plan, make_loop=None, session_creator=placed.session_creator)
    return plan, list(placed.hooks)


def plan_prediction(
    call: StrategyCall, predict_keys: Sequence[str] | str | None
) -> tuple[PredictionPlan, Hooks]:
    """Plans a prediction, a step of all replicas in each session call.

    Args:
        call: The call, of mode `"infer"`.
        predict_keys: Predictions to keep; `None` keeps all.

    Returns:
        The plan, and the hooks that the placement needs.

    Raises:
        ValueError: If the strategy has replicas in other processes.
    """
    _check_in_this_process(call)
    template, feed = _trace(call, repeated=False)
    predictions = select_predictions(template.predictions, predict_keys)
    placed = place_prediction_under_strategy(template, predictions, feed)
    plan = PredictionPlan(
        placed.template, placed.template.predictions, session_creator=placed.session_creator
    )
    return plan, list(placed.hooks)


def _trace(call: StrategyCall, *, repeated: bool) -> tuple[ModelTemplate, StrategyFeed]:
    feed = StrategyFeed(call.strategy, call.call_input_fn, repeated=repeated)
    features, labels = feed.make_placeholders()
    labels = None if call.mode == ModeKeys.PREDICT else labels
    replicas = call.strategy.num_replicas_in_sync
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf_private.replicas(replicas))
        stack.enter_context(on_cores())
        if call.sees_strategy:
            traced = tf_private_strategy.TracedStrategy(replicas)
            stack.enter_context(traced.tracing(feed.replica_id))
        spec = call.call_model_fn(features, labels)
    template = spec.as_template(mode=call.mode, features=features, labels=labels)
    if not type(call.strategy).__name__.startswith("TPUStrategy"):
        refuse_ops_that_end_the_process(template)
    scaffold = template.make_scaffold()
    given = [part for part in _SCAFFOLD_PARTS if getattr(scaffold, part) is not None]
    if given and not isinstance(scaffold, ObjectScaffold):
        raise ValueError(
            f"A Scaffold with {given} can't be used under {_named(call.strategy)}, a "
            "tf.distribute strategy, as its variables are not those of a session. Leave scaffold "
            "(scaffold_fn) out, or train without the strategy."
        )
    return dataclasses.replace(template, make_scaffold=lambda: scaffold), feed


def _check_replicas_train_together(call: StrategyCall, graph: tf.Graph) -> None:
    if not call.sees_strategy:
        check_gradients_are_combined(graph)
    elif not any(op.type == SUM for op in graph.get_operations()):
        raise ValueError(
            f"The train_op of model_fn has no sum over the replicas of {_named(call.strategy)}, so "
            "each would train on its own. Let an optimizer of tf.compat.v1.train or "
            "tf.keras.optimizers.legacy apply the gradients, or sum them with "
            "tf.distribute.get_replica_context().all_reduce('SUM', gradients)."
        )


def _check_in_this_process(call: StrategyCall) -> None:
    if spans_processes(call.strategy):
        raise ValueError(
            f"{_named(call.strategy)} has replicas in other processes: only training runs over "
            "several. Leave eval_distribute out of RunConfig, or let train_and_evaluate have an "
            "evaluator task, which evaluates by itself."
        )


def _named(strategy: tf.distribute.Strategy) -> str:
    return f"{type(strategy).__name__} ({strategy.num_replicas_in_sync} replicas)"
