"""What a host does that is not the chief: it helps to train, and writes no artifact."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import tensorflow as tf

from tfx_tpu_trainer.component.chief_status import ChiefWatch
from tfx_tpu_trainer.component.hosts import Role
from tfx_tpu_trainer.component.training import Training
from tfx_tpu_trainer.estimator.schedule import EvalSpec, TrainSpec
from tfx_tpu_trainer.estimator.schedule.checkpoint_evaluator import Evaluated, EvaluationListener
from tfx_tpu_trainer.estimator.schedule.tasks import run_schedule, start_server

_logger = logging.getLogger(__name__)

_EVALUATE_EVERY_SECONDS = 10
_LONGEST_NAP_SECONDS = 1.0


def help_chief(training: Training, watch: ChiefWatch) -> None:
    """Does this host's part, and returns when the chief has written the artifacts.

    Args:
        training: The training, prepared for this host.
        watch: How far the chief is.

    Raises:
        ChiefFailedError: The chief has failed or is gone.
    """
    role = training.host.role
    _logger.info("This host helps as %s; the chief alone writes artifacts.", role.value)
    if watch.is_training():
        _PARTS[role](training, watch)
    watch.wait_for_end()


def _serve_variables(training: Training, watch: ChiefWatch) -> None:
    server = start_server(training.estimator_at(0).config)
    # Its join() would never return.
    watch.wait_for_end()
    del server


def _train(training: Training, watch: ChiefWatch) -> None:
    estimator = training.estimator_at(0)
    server = start_server(estimator.config)
    with watch.ending_this_process():
        estimator.train(training.train_input_fn, max_steps=training.request.train_steps)
    del server


def _evaluate(training: Training, watch: ChiefWatch) -> None:
    request = training.request
    try:
        run_schedule(
            training.estimator_at(0),
            TrainSpec(training.train_input_fn, max_steps=request.train_steps),
            EvalSpec(
                training.eval_input_fn,
                steps=request.eval_steps,
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
        _logger.info("The chief has ended training: the evaluation under way is left.")


def _wait(training: Training, watch: ChiefWatch) -> None:
    """Leaves the cores to the TPU's own runtime, which serves the chief's session."""


class _WhileTraining(EvaluationListener):
    """Ends the evaluations when the chief has ended training."""

    def __init__(self, watch: ChiefWatch) -> None:
        self._watch = watch

    def before_eval(self) -> bool:
        return self._watch.is_training()

    def after_eval(self, evaluated: Evaluated | None) -> bool:
        del evaluated
        return self._watch.is_training()


def _sleep(seconds: float, while_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0 and while_true():
        time.sleep(min(left, _LONGEST_NAP_SECONDS))


_PARTS: dict[Role, Callable[[Training, ChiefWatch], None]] = {
    Role.PS: _serve_variables,
    Role.WORKER: _train,
    Role.EVALUATOR: _evaluate,
    Role.TPU_HOST: _wait,
}
