"""What a host does that is not the chief: it helps to train, and writes no artifact."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.trainer.chief_status import ChiefWatch
from tfx_tpu_trainer.components.trainer.hosts import Role
from tfx_tpu_trainer.estimator import Estimator, EvalSpec, TrainSpec
from tfx_tpu_trainer.estimator.extending import (
    EvaluatedCheckpoint,
    EvaluationListener,
    run_schedule,
    start_server,
)

_logger = logging.getLogger(__name__)

_EVALUATE_EVERY_SECONDS = 10
_LONGEST_NAP_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HelperPart:
    """What a helping host needs of a training.

    Attributes:
        role: What it does.
        estimator: The estimator, configured for this task of the cluster.
        train_input_fn: Input function for training.
        eval_input_fn: Input function for evaluation.
        train_steps: Global step at which training ends.
        eval_steps: Batches to evaluate; `None` is the whole split.
        eval_hooks: Hooks of the evaluations.
    """

    role: Role
    estimator: Estimator
    train_input_fn: Callable[..., Any]
    eval_input_fn: Callable[..., Any]
    train_steps: int
    eval_steps: int | None
    eval_hooks: Sequence[tf.compat.v1.train.SessionRunHook]


def help_chief(part: HelperPart, watch: ChiefWatch) -> None:
    """Does this host's part, and returns when the chief has written the artifacts."""
    _logger.info("This host takes part as %s; only the chief writes artifacts.", part.role.value)
    with said_while_waiting(watch.awaited, change=watch.bounds):
        if watch.is_training():
            _PARTS[part.role](part, watch)
        watch.wait_for_end()


def _serve_variables(part: HelperPart, watch: ChiefWatch) -> None:
    server = start_server(part.estimator.config)
    # Its join() would never return.
    watch.wait_for_end()
    del server


def _train(part: HelperPart, watch: ChiefWatch) -> None:
    estimator = part.estimator
    server = start_server(estimator.config)
    with watch.ending_this_process():
        estimator.train(part.train_input_fn, max_steps=part.train_steps)
    del server


def _evaluate(part: HelperPart, watch: ChiefWatch) -> None:
    try:
        run_schedule(
            part.estimator,
            TrainSpec(part.train_input_fn, max_steps=part.train_steps),
            EvalSpec(
                part.eval_input_fn,
                steps=part.eval_steps,
                hooks=part.eval_hooks,
                start_delay_secs=0,
                throttle_secs=_EVALUATE_EVERY_SECONDS,
            ),
            listener=_WhileTraining(watch),
            sleep=lambda seconds: _sleep(seconds, watch.is_training),
        )
    except (tf.errors.OpError, ValueError):
        # The chief evaluates the last checkpoint itself, and removes them all.
        if watch.is_training():
            raise
        _logger.info("The chief has finished training: the current evaluation is abandoned.")


def _wait(part: HelperPart, watch: ChiefWatch) -> None:
    """Leaves the cores to the TPU's own runtime, which serves the chief's session."""


class _WhileTraining(EvaluationListener):
    """Ends the evaluations when the chief has ended training."""

    def __init__(self, watch: ChiefWatch) -> None:
        self._watch = watch

    def before_eval(self) -> bool:
        return self._watch.is_training()

    def after_eval(self, evaluated: EvaluatedCheckpoint | None) -> bool:
        del evaluated
        return self._watch.is_training()


def _sleep(seconds: float, while_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0 and while_true():
        time.sleep(min(left, _LONGEST_NAP_SECONDS))


_PARTS: dict[Role, Callable[[HelperPart, ChiefWatch], None]] = {
    Role.PS: _serve_variables,
    Role.WORKER: _train,
    Role.EVALUATOR: _evaluate,
    Role.TPU_HOST: _wait,
}
