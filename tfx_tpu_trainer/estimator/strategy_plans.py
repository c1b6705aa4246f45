"""Plans a call under a `tf.distribute` strategy: `RunConfig(train_distribute=..., ...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private
from tfx_tpu_trainer.engine.checking.train_op_check import check_train_op
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.loops.loop_hook import LoopHook
from tfx_tpu_trainer.engine.loops.step_loop import create_iterations
from tfx_tpu_trainer.engine.placement.emulated import check_gradients_are_combined
from tfx_tpu_trainer.engine.placement.host_evaluation import plan_evaluation_on_host
from tfx_tpu_trainer.engine.placement.strategy import (
    place_evaluation_under_strategy,
    place_prediction_under_strategy,
    place_training_under_strategy,
)
from tfx_tpu_trainer.engine.placement.strategy_feed import StrategyFeed
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.template import ModelTemplate
from tfx_tpu_trainer.engine.training.training import TrainingPlan
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
    """

    mode: str
    strategy: tf.distribute.Strategy
    call_input_fn: Callable[[tf.distribute.InputContext], Any]
    call_model_fn: Callable[[Any, Any], Any]


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
    """Gives the strategy that a configuration has for a mode.

    As in the original, prediction has none. `experimental_distribute` wins over the others.
    """
    name = {ModeKeys.TRAIN: "train_distribute", ModeKeys.EVAL: "eval_distribute"}.get(mode)
    if name is None:
        return None
    both = config.experimental_distribute
    return getattr(both, name, None) or getattr(config, name)


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
            them, or the train_op trains nothing.
    """
    template, feed = _trace(call, repeated=True)
    check_train_op(template)
    if call.strategy.num_replicas_in_sync > 1:
        check_gradients_are_combined(template.graph)
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
        The plan, and the hooks that the placement needs.
    """
    placed = place_evaluation_under_strategy(*_trace(call, repeated=False))
    plan = plan_evaluation_on_host(placed.template, steps=steps)
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
    """
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
    with tf_private.replicas(call.strategy.num_replicas_in_sync), on_cores():
        spec = call.call_model_fn(features, labels)
    template = spec.as_template(mode=call.mode, features=features, labels=labels)
    scaffold = template.make_scaffold()
    given = [part for part in _SCAFFOLD_PARTS if getattr(scaffold, part) is not None]
    if given:
        raise ValueError(
            f"A Scaffold with {given} can't be used under a tf.distribute strategy, as its "
            "variables are not those of a session. Leave scaffold (scaffold_fn) out, or train "
            "without the strategy."
        )
    return dataclasses.replace(template, make_scaffold=lambda: scaffold), feed
