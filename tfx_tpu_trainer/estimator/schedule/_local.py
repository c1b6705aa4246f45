"""Training and evaluation in turn, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import duration, expecting
from tfx_tpu_trainer.estimator.hooks._eval_events import read_eval_metrics
from tfx_tpu_trainer.estimator.schedule._checkpoint_evaluator import (
    CheckpointEvaluator,
    EvaluatedCheckpoint,
    EvaluationListener,
)
from tfx_tpu_trainer.estimator.schedule._specs import EvalSpec, TrainSpec

v1 = tf.compat.v1
_logger = tf.get_logger()


def run_local(
    estimator: Any,
    train_spec: TrainSpec,
    eval_spec: EvalSpec,
    *,
    listener: EvaluationListener | None = None,
) -> tuple[Mapping[str, Any] | None, list[bytes | None] | None]:
    """Trains, and evaluates after each checkpoint but the first.

    With `RunConfig(save_input_position=True)` it evaluates the first one too where the training that it continues with
    was ended before it had done that.
    """
    config = estimator.config
    _logger.info(
        "Start train and evaluate loop. The evaluate will happen after every checkpoint. "
        "Checkpoint frequency is determined based on RunConfig arguments: save_checkpoints_steps "
        "%s or save_checkpoints_secs %s.",
        config.save_checkpoints_steps,
        config.save_checkpoints_secs,
    )

    def is_missing(step: int) -> bool:
        goes_on = step > 0 and config.save_input_position
        return goes_on and step not in read_eval_metrics(estimator.eval_dir(eval_spec.name))

    evaluations = EvaluateAfterSaving(
        CheckpointEvaluator(estimator, eval_spec, max_steps=train_spec.max_steps),
        throttle_secs=eval_spec.throttle_secs,
        is_missing=is_missing,
        listener=listener,
    )
    with expecting(next_evaluation=evaluations.next_in_words):
        estimator.train(
            input_fn=train_spec.input_fn,
            max_steps=train_spec.max_steps,
            hooks=list(train_spec.hooks),
            saving_listeners=[*train_spec.saving_listeners, evaluations],
        )
    last = evaluations.last
    return (None, None) if last is None else (last.metrics, last.exports)


class EvaluateAfterSaving(v1.train.CheckpointSaverListener):
    """Evaluates what was saved, unless the last evaluation started too short a time ago."""

    def __init__(
        self,
        evaluator: CheckpointEvaluator,
        *,
        throttle_secs: float,
        is_missing: Callable[[int], bool] = lambda step: False,
        listener: EvaluationListener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._evaluator = evaluator
        self._throttle_secs = throttle_secs
        self._is_missing = is_missing
        self._listener = listener or EvaluationListener()
        self._clock = clock
        self._started: float | None = None
        self._evaluated_step: int | None = None
        self._first = True
        self.last: EvaluatedCheckpoint | None = None

    def next_in_words(self) -> str:
        """Returns when the next evaluation is, in words that follow "next evaluation"."""
        left = 0.0
        if self._started is not None:
            left = self._started + self._throttle_secs - self._clock()
        if left <= 0:
            return "with the next checkpoint"
        return f"with a checkpoint in {duration(left)} or later"

    def begin(self) -> None:
        """Starts again: the first checkpoint is that of an untrained model, or was evaluated before."""
        self._first = True

    def after_save(self, session: v1.Session, global_step_value: int) -> bool | None:
        """Evaluates; returns `True` to stop training."""
        del session
        if self._first:
            self._first = False
            if not self._is_missing(int(global_step_value)):
                return None
        if not self._listener.before_eval():
            _logger.info(
                "Exiting training and evaluation loop, as requested by "
                "_ContinuousEvalListener.before_eval."
            )
            return True
        now = self._clock()
        if self._started is not None and now - self._started < self._throttle_secs:
            _logger.info(
                "Skip the current checkpoint eval due to throttle secs (%s secs): %d secs left.",
                self._throttle_secs,
                self._throttle_secs - (now - self._started),
            )
            return None
        self._evaluate(global_step_value, now)
        if not self._listener.after_eval(self.last):
            _logger.info("Exiting evaluation, as requested by _ContinuousEvalListener.after_eval.")
            return True
        return None

    def end(self, session: v1.Session, global_step_value: int) -> None:
        """Evaluates the last checkpoint, if that is not done yet."""
        del session
        if global_step_value != self._evaluated_step and self._listener.before_eval():
            self._evaluate(global_step_value, self._clock())
            self._listener.after_eval(self.last)

    def _evaluate(self, step: int, now: float) -> None:
        self._started, self._evaluated_step = now, step
        evaluated = self._evaluator.evaluate_newest()
        if evaluated is None:
            raise RuntimeError(
                f"There was no new checkpoint after the training reached step {step}: another "
                "process removes or replaces the checkpoints in model_dir; give each training its "
                "own."
            )
        self.last = evaluated
