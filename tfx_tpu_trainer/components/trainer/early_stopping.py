"""Trains with evaluations in between, which give a learning curve, the best checkpoint and an early stop.

The state is written next to the checkpoints after each evaluation, so a restarted training continues from there.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.progress import expecting
from tfx_tpu_trainer._support.whole_files import file_written_whole
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    Goal,
    LearningCurve,
    Point,
    take_up_learning_curve,
    write_learning_curve,
)
from tfx_tpu_trainer.components.inputs import RowCache, train_on_current_rows
from tfx_tpu_trainer.components.trainer.resume import LastSaved
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator.extending import (
    AwaitedListener,
    LoopEndHook,
    OpenEvaluation,
    checkpoints,
)

v1 = tf.compat.v1
_logger = logging.getLogger(__name__)

_BEST_FOLDER = "best"


class StopAfterSecondsHook(LoopEndHook):
    """Stops a training session after some time, at the end of a loop of steps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Starts the clock; building the graph does not count as training."""
        del session, coord
        self._end = time.monotonic() + self._seconds

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops when the time is up."""
        del run_values
        if time.monotonic() >= self._end:
            run_context.request_stop()


class _OnTheWay(AwaitedListener):
    """Evaluates a training's checkpoints while its session stays open, except that of the last step."""

    def __init__(self, training: EvaluatedTraining, curve: LearningCurve, *, step: int) -> None:
        self.every_steps = training.every_steps
        self.curve = curve
        self.evaluated: int | None = None  # The step of the last evaluation.
        self._training = training
        self._next = training.target(step)
        self._due_at: float | None = None

    def next_in_words(self) -> str:
        """Describes when the next evaluation is, after the words "next evaluation"."""
        secs = self._training.every_secs
        return f"at step {self._next:,}" if secs is None else f"after {secs} s of training"

    def begin(self) -> None:
        """Lets the clock start with the session; building the graph does not count as training."""
        self._due_at = None

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        """Starts the clock with a session's first checkpoint."""
        if self._due_at is None:
            self._start_clock()
        super().before_save(session, global_step_value)

    def is_due(self, step: int) -> bool:
        """Returns whether an evaluation is due."""
        if self.every_steps is not None:
            return step >= self._next
        return self._due_at is not None and self.clock() >= self._due_at

    def after_save(self, session: v1.Session, global_step_value: int) -> bool:
        """Evaluates if it is due; the last step's evaluation needs no open session."""
        is_last = global_step_value >= self._training.max_steps
        return not is_last and super().after_save(session, global_step_value)

    def use(self, step: int) -> bool:
        """Evaluates; returns whether the training is to stop early."""
        self._start_clock()
        self.curve = self._training.evaluated(self.curve)
        self.evaluated, self._next = step, self._training.target(step)
        return self.curve.stops

    def _start_clock(self) -> None:
        self._due_at = self.clock() + (self._training.every_secs or 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluatedTraining:
    """A training up to a step, with evaluations on the way."""

    # Returns the estimator that continues from a step. If each part of the training reads its input from the beginning,
    # the random seed should depend on the step.
    estimator_at: Callable[[int], tpu.TPUEstimator]
    train_input_fn: Callable[..., Any]
    evaluation: OpenEvaluation
    max_steps: int  # The global step at which the training ends.
    every_steps: int | None  # Steps between evaluations, at multiples of it; `None` goes by time.
    every_secs: int | None  # Seconds of training between evaluations.
    goal: Goal | None  # Selects the best checkpoint; `None` keeps none.
    # Notified of every checkpoint.
    saving_listeners: Sequence[v1.train.CheckpointSaverListener] = ()
    # Called before the curve and the best checkpoint are written; raises if another attempt owns them now.
    before_writing: Callable[[], None] = lambda: None
    # Called after the evaluation of a new best checkpoint.
    on_best: Callable[[], None] = lambda: None
    row_cache: RowCache | None = None
    batch_size: int = 0  # Rows per step, on all cores; used with a row cache.
    # Whether the training's session stays open during evaluations, in sessions of this process. A real TPU, or the
    # devices of a strategy, run either.
    keeps_session: bool = False
    # Finds the checkpoint to evaluate and, without a goal, to export.
    last_saved: LastSaved = dataclasses.field(default_factory=LastSaved)

    def run(self) -> LearningCurve:
        """Trains and evaluates to the last step, or until the goal's patience ends.

        The state is `learning_curve.json` in the estimator's folder, and the best checkpoint in
        `best/` below it. An existing state is continued.
        """
        # The state after each evaluation is complete: checkpoints, `best/`, and the curve that names them, written
        # last. A killed training is therefore in one of two states: either the curve has a point for the last
        # checkpoint, and the training continues; or it has none yet, and that evaluation comes first. No evaluation is
        # repeated or left out. Example, evaluating at 100, 200, ...: killed at 250, it resumes at the checkpoint of 200
        # or later if the curve has its point; otherwise it evaluates 200 before it trains to 300.
        folder = self.estimator_at(0).model_dir
        curve = (take_up_learning_curve(folder) or LearningCurve()).with_goal(self.goal)
        step = checkpoints.global_step_of(folder)
        if self._is_due(step) and curve.at(step) is None:
            # It was stopped between a checkpoint and its evaluation.
            curve = self.evaluated(curve)
        while step < self.max_steps and not curve.stops:
            trained = self._train_on(step, curve)
            before, step = step, step if self.last_saved.step is None else self.last_saved.step
            curve = trained.curve if trained.evaluated == step else self.evaluated(trained.curve)
            if not curve.stops and (step == before or self._input_ended(before, step)):
                _logger.warning("The training input ended at step %d of %d.", step, self.max_steps)
                break
        if step < self.max_steps and curve.stops:
            assert curve.goal is not None
            _logger.info(
                "Training stops early at step %d: %s has not improved in %d evaluations.",
                step,
                curve.goal.metric,
                curve.evaluations_since_best,
            )
        return curve

    def chosen_checkpoint(self, curve: LearningCurve) -> str | None:
        """Returns the path of the checkpoint to export: the best one, else the last one."""
        folder = self.estimator_at(0).model_dir
        if curve.best_checkpoint is not None:
            return os.path.join(folder, curve.best_checkpoint)
        return self.last_saved.path(folder)

    def _is_due(self, step: int) -> bool:
        if step == 0:
            return False
        by_steps = self.every_steps is not None and step % self.every_steps == 0
        return by_steps or step >= self.max_steps

    def target(self, step: int) -> int:
        """Returns the step of the evaluation after a step; by time, that of the last one."""
        if self.every_steps is None:
            return self.max_steps
        return min(self.max_steps, (step // self.every_steps + 1) * self.every_steps)

    def _input_ended(self, step: int, reached: int) -> bool:
        if self.keeps_session:
            return reached < self.max_steps
        # With evaluations by time, a part of the training may end at any step.
        return self.every_secs is None and reached < self.target(step)

    def _train_on(self, step: int, curve: LearningCurve) -> _OnTheWay:
        """Trains to the last step, with evaluations, or else to the next evaluation."""
        on_the_way = _OnTheWay(self, curve, step=step)
        target, listeners, hooks = self.max_steps, [on_the_way], []
        if not self.keeps_session:
            target, listeners = self.target(step), []
            hooks = [] if self.every_secs is None else [StopAfterSecondsHook(self.every_secs)]
        with expecting(last_step=self.max_steps, next_evaluation=on_the_way.next_in_words):
            train_on_current_rows(
                lambda more: self.estimator_at(step).train(
                    self.train_input_fn,
                    hooks=[*hooks, *more],
                    max_steps=target,
                    saving_listeners=[*self.saving_listeners, self.last_saved, *listeners],
                ),
                self.row_cache,
                batch_size=self.batch_size,
            )
        return on_the_way

    def evaluated(self, curve: LearningCurve) -> LearningCurve:
        """Evaluates the last checkpoint; returns the curve with it, as written."""
        folder = self.estimator_at(0).model_dir
        result = self.evaluation.evaluate(self.last_saved.path(folder))
        metrics = EvalMetrics.from_result(result)
        point = Point(metrics=metrics, time=time.time())
        self.before_writing()
        if curve.would_be_best(metrics):
            assert result.checkpoint_path is not None
            self.on_best()
            curve = curve.with_best(point, _keep(result.checkpoint_path, folder))
        # The state names a checkpoint only after it is written; the previous one is removed only after that.
        curve = curve.with_point(point)
        # Copying a large checkpoint may take long enough for another attempt to begin.
        self.before_writing()
        write_learning_curve(folder, curve)
        _remove_former(curve, folder)
        return curve


def _keep(checkpoint: str, folder: str) -> str:
    """Copies a checkpoint before it is removed; returns its path relative to the folder."""
    # In its own folder: after a restart the same step may be the best again, with other values.
    kept = os.path.join(_BEST_FOLDER, uuid.uuid4().hex[:8])
    name = os.path.join(kept, os.path.basename(checkpoint))
    # The index, which names the other files, comes last.
    for file in sorted(
        tf.io.gfile.glob(f"{checkpoint}.*"), key=lambda path: path.endswith(".index")
    ):
        with file_written_whole(os.path.join(folder, name) + file[len(checkpoint) :]) as copy:
            tf.io.gfile.copy(file, copy)
    return name


def _remove_former(curve: LearningCurve, folder: str) -> None:
    """Removes `_keep`'s copies of other points, including those of an interrupted run."""
    best_folder = os.path.join(folder, _BEST_FOLDER)
    if not tf.io.gfile.isdir(best_folder):
        return
    current = os.path.dirname(curve.best_checkpoint or "")
    for name in tf.io.gfile.listdir(best_folder):
        if os.path.join(_BEST_FOLDER, name.rstrip("/")) != current:
            tf.io.gfile.rmtree(os.path.join(best_folder, name))
