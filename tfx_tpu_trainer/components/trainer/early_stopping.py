"""Training with evaluations in between: a learning curve, the best checkpoint kept, an early stop.

Train, evaluate, train on: what was decided is written beside the checkpoints after each evaluation, so
that a training which is started again goes on where it stood.
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
from tfx_tpu_trainer.estimator.extending import LoopEndHook, checkpoints

v1 = tf.compat.v1
_logger = logging.getLogger(__name__)

_BEST_FOLDER = "best"


class StopAfterSecondsHook(LoopEndHook):
    """Stops a training session after some time, at the end of a loop of steps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        """Starts the clock: what it took to build the graph is not training."""
        del session, coord
        self._end = time.monotonic() + self._seconds

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        """Stops when the time is over."""
        del run_values
        if time.monotonic() >= self._end:
            run_context.request_stop()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluatedTraining:
    """A training to a step, with evaluations on the way."""

    # Returns the estimator that trains on from a step. Where each part of the training reads its
    # input again, the random seed should differ by the step.
    estimator_at: Callable[[int], tpu.TPUEstimator]
    train_input_fn: Callable[..., Any]  # Input function for training.
    eval_input_fn: Callable[..., Any]  # Input function for evaluation.
    max_steps: int  # Global step at which training ends.
    eval_steps: int | None  # Batches of an evaluation; `None` is the whole split.
    every_steps: int | None  # Evaluate at every multiple of this step; `None` goes by time.
    every_secs: int | None  # Evaluate after so many seconds of training.
    goal: Goal | None  # What makes a checkpoint the best; `None` keeps none.
    # Listeners told of every checkpoint.
    saving_listeners: Sequence[v1.train.CheckpointSaverListener] = ()
    # Hooks of the evaluations. Defaults to none.
    eval_hooks: Sequence[v1.train.SessionRunHook] = ()
    # Called before the curve and the best checkpoint are written; raises where they are another
    # attempt's by now. Defaults to nothing.
    before_writing: Callable[[], None] = lambda: None
    # Called after the evaluation of a checkpoint that is the best by now. Defaults to nothing.
    on_best: Callable[[], None] = lambda: None
    # Keeps the parsed rows of the training. Defaults to `None`: nothing does.
    row_cache: RowCache | None = None
    batch_size: int = 0  # Rows of a step, on all cores; of use with a row cache.
    # What is evaluated and, without a goal, exported.
    last_saved: LastSaved = dataclasses.field(default_factory=LastSaved)

    def run(self) -> LearningCurve:
        """Trains and evaluates to the end, or until the goal's patience ends.

        The state is `learning_curve.json` in the estimator's folder, and the best checkpoint in
        `best/` below it. Where there is such a state, it is taken up.
        """
        # The state after each evaluation is whole: checkpoints, `best/`, and the curve that names
        # them, written last. So a killed training is in one of two states. Either the curve has a
        # point for the last checkpoint, and it trains on; or the checkpoint has no point yet, and
        # that evaluation comes first. An evaluation is never made twice, and none is left out.
        #   evaluate at 100, 200: killed at 250 -> resumes at the checkpoint of 200 or later, which
        #   has its point, or at 200 without one, and evaluates it before it trains to 300.
        folder = self.estimator_at(0).model_dir
        curve = (take_up_learning_curve(folder) or LearningCurve()).with_goal(self.goal)
        step = checkpoints.global_step_of(folder)
        if self._is_due(step) and curve.at(step) is None:
            # It was stopped between a checkpoint and its evaluation.
            curve = self._evaluate(curve, folder)
        while step < self.max_steps and not curve.stops:
            self._train_on(step)
            reached = step if self.last_saved.step is None else self.last_saved.step
            curve = self._evaluate(curve, folder)
            if reached == step or self._input_ended(step, reached):
                _logger.warning(
                    "The training input ended at step %d of %d.", reached, self.max_steps
                )
                break
            step = reached
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

    def _target(self, step: int) -> int:
        if self.every_steps is None:
            return self.max_steps
        return min(self.max_steps, (step // self.every_steps + 1) * self.every_steps)

    def _input_ended(self, step: int, reached: int) -> bool:
        # Time ends a part of the training anywhere.
        return self.every_secs is None and reached < self._target(step)

    def _train_on(self, step: int) -> None:
        hooks = [] if self.every_secs is None else [StopAfterSecondsHook(self.every_secs)]
        when = f"at step {self._target(step):,}"
        if self.every_secs is not None:
            when = f"after {self.every_secs} s of training"
        with expecting(last_step=self.max_steps, next_evaluation=lambda: when):
            train_on_current_rows(
                lambda more: self.estimator_at(step).train(
                    self.train_input_fn,
                    hooks=[*hooks, *more],
                    max_steps=self._target(step),
                    saving_listeners=[*self.saving_listeners, self.last_saved],
                ),
                self.row_cache,
                batch_size=self.batch_size,
            )

    def _evaluate(self, curve: LearningCurve, folder: str) -> LearningCurve:
        estimator = self.estimator_at(0)
        result = estimator.evaluate_result(
            self.eval_input_fn,
            steps=self.eval_steps,
            hooks=self.eval_hooks,
            checkpoint_path=self.last_saved.path(folder),
        )
        metrics = EvalMetrics.from_result(result)
        point = Point(metrics=metrics, time=time.time())
        self.before_writing()
        if curve.would_be_best(metrics):
            assert result.checkpoint_path is not None
            self.on_best()
            curve = curve.with_best(point, _keep(result.checkpoint_path, folder))
        # The state names a checkpoint once it is there, and a former one goes only after that.
        curve = curve.with_point(point)
        # Copying a large checkpoint takes long enough for another attempt to begin.
        self.before_writing()
        write_learning_curve(folder, curve)
        _remove_former(curve, folder)
        return curve


def _keep(checkpoint: str, folder: str) -> str:
    """Copies a checkpoint where no later one pushes it out; returns its place below the folder."""
    # A folder of its own: the same step may be the best again after a restart, with other values.
    kept = os.path.join(_BEST_FOLDER, uuid.uuid4().hex[:8])
    name = os.path.join(kept, os.path.basename(checkpoint))
    # The index, which names the others, comes last.
    for file in sorted(
        tf.io.gfile.glob(f"{checkpoint}.*"), key=lambda path: path.endswith(".index")
    ):
        with file_written_whole(os.path.join(folder, name) + file[len(checkpoint) :]) as copy:
            tf.io.gfile.copy(file, copy)
    return name


def _remove_former(curve: LearningCurve, folder: str) -> None:
    """Removes what `_keep` has made for other points, those of an interrupted run among them."""
    best_folder = os.path.join(folder, _BEST_FOLDER)
    if not tf.io.gfile.isdir(best_folder):
        return
    current = os.path.dirname(curve.best_checkpoint or "")
    for name in tf.io.gfile.listdir(best_folder):
        if os.path.join(_BEST_FOLDER, name.rstrip("/")) != current:
            tf.io.gfile.rmtree(os.path.join(best_folder, name))
