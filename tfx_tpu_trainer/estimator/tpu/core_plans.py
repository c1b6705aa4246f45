"""Plans a call on TPU cores, emulated or real: the same template, one of two placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfx_tpu_trainer.engine.checking import nan_checks
from tfx_tpu_trainer.engine.copying.graph_copy import CoreCopier, GraphCopier
from tfx_tpu_trainer.engine.evaluating.core_evaluation import plan_evaluation_on_cores
from tfx_tpu_trainer.engine.evaluating.evaluation_plan import EvaluationPlan
from tfx_tpu_trainer.engine.loops.loop_hook import (
    LoopHook,
    LoopLength,
    LoopLengthFromTime,
    TunedLoopLength,
)
from tfx_tpu_trainer.engine.placement.emulated import place_training_on_cores
from tfx_tpu_trainer.engine.placement.session_tpu import TPUCopier, place_training_on_tpu
from tfx_tpu_trainer.engine.predicting.core_prediction import (
    check_predictions,
    plan_prediction_on_cores,
)
from tfx_tpu_trainer.engine.predicting.prediction import PredictionPlan
from tfx_tpu_trainer.engine.sessions.tpu_system import TPUSystemHook
from tfx_tpu_trainer.engine.training.training import TrainingPlan
from tfx_tpu_trainer.estimator.predicted_rows import select_predictions
from tfx_tpu_trainer.estimator.strategy_plans import Loops
from tfx_tpu_trainer.estimator.tpu.core_run import CoreRun, CoreTrace
from tfx_tpu_trainer.estimator.tpu.run_config import RunConfig
from tfx_tpu_trainer.estimator.tpu.tpu_config import parse_iterations_per_loop

v1 = tf.compat.v1

# A loop that lasts some time may have any number of steps.
_MANY_STEPS = 1 << 32
# Steps that the host stacks for a TPU at a time, where the loop's length is a time.
_STEPS_OF_A_TIMED_TRANSFER = 1000


def plan_loops(config: RunConfig, *, log_every_n_steps: int | None) -> Loops:
    """Reads what a configuration says of loops.

    Args:
        config: The configuration of the run.
        log_every_n_steps: Steps between log lines, or `None`.

    Returns:
        The loops of a training.
    """
    meaning = parse_iterations_per_loop(config.tpu_config.iterations_per_loop)
    length: LoopLength | LoopLengthFromTime | TunedLoopLength = LoopLength(meaning.value)
    longest, periods = meaning.value, tuple[int, ...]()
    if meaning.unit != "count":
        longest = _MANY_STEPS
        length = LoopLengthFromTime(meaning.value) if meaning.value else TunedLoopLength()
    if meaning.unit == "auto":
        due = (config.save_checkpoints_steps, config.save_summary_steps, log_every_n_steps)
        periods = tuple(period for period in due if period)
    return Loops(
        length=length,
        longest=longest,
        periods=periods,
        host_call_every_n_steps=config.tpu_config.experimental_host_call_every_n_steps,
    )


def plan_training(
    run: CoreRun,
    trace: CoreTrace,
    *,
    loops: Loops,
    steps: int | None,
    max_steps: int | None,
) -> TrainingPlan:
    """Plans training: a loop of steps in each session call.

    Args:
        run: How the call runs.
        trace: The model.
        loops: How many steps a session call makes.
        steps: Steps to make now; excludes `max_steps`.
        max_steps: Global step to stop at.

    Returns:
        The plan.

    Raises:
        ValueError: If several replicas train without a sum over them, or the train_op trains
            nothing.
    """
    if run.system is None:
        loop = place_training_on_cores(
            trace.template,
            trace.feed,
            cores=run.cores,
            broadcast=run.broadcast,
            host_call_every_n_steps=loops.host_call_every_n_steps,
        )
    else:
        loop = place_training_on_tpu(
            trace.template,
            trace.feed,
            cores=run.cores,
            broadcast=run.broadcast,
            host_call_every_n_steps=loops.host_call_every_n_steps,
            iterations_per_loop=min(loops.longest, _STEPS_OF_A_TIMED_TRANSFER),
        )
    return TrainingPlan(
        template=trace.template,
        train_op=loop.loss if run.broadcast else nan_checks.fail_at_nan_after(loop.loss),
        loss=loop.loss,
        stop_hook=LoopHook(
            loop.iterations,
            length=loops.length,
            steps=steps,
            max_steps=max_steps,
            ends_at_multiples_of=loops.periods,
        ),
        steps_per_call=loops.longest,
    )


def plan_evaluation(run: CoreRun, trace: CoreTrace, *, steps: int | None) -> EvaluationPlan:
    """Plans an evaluation: all its batches in one session call.

    Args:
        run: How the call runs.
        trace: The model.
        steps: Batches to evaluate; `None` goes to the end of the input.

    Returns:
        The plan.
    """
    return plan_evaluation_on_cores(
        trace.template,
        trace.feed,
        cores=run.cores,
        broadcast=run.broadcast,
        steps=steps,
        for_cores=_copier_onto(run),
    )


def plan_prediction(
    run: CoreRun, trace: CoreTrace, predict_keys: Sequence[str] | str | None
) -> PredictionPlan:
    """Plans a prediction: a batch in each session call.

    Args:
        run: How the call runs.
        trace: The model.
        predict_keys: Predictions to keep; `None` keeps all.

    Returns:
        The plan.

    Raises:
        TypeError: If the predictions are no dict.
        ValueError: If none of the keys is there, a prediction has no static batch, or they are
            too large for a transfer.
    """
    assert trace.is_padding is not None
    check_predictions(trace.template.predictions)
    return plan_prediction_on_cores(
        trace.template,
        select_predictions(trace.template.predictions, predict_keys),
        trace.feed,
        trace.is_padding,
        cores=run.cores,
        broadcast=run.broadcast,
        for_cores=_copier_onto(run),
    )


def system_hooks(run: CoreRun) -> list[v1.train.SessionRunHook]:
    """Returns the hooks that the cores themselves need: real ones are initialized and shut down."""
    if run.system is None:
        return []
    return [TPUSystemHook(master=run.system.master, job=run.system.job)]


def variable_check_hooks(run: CoreRun) -> list[v1.train.SessionRunHook]:
    """Returns the hooks that look for variables which are not finite, once in a session."""
    return [] if run.broadcast else [nan_checks.VariableChecksHook()]


def _copier_onto(run: CoreRun) -> Callable[[GraphCopier], CoreCopier]:
    if run.system is None:
        return lambda copier: copier
    return lambda copier: TPUCopier(copier.graph)
