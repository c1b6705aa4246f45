"""Defines LearningCurve: the evaluations of a training, the best one, and when to stop."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import uuid
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import parse_document, write_document
from tfx_tpu_trainer.components.evaluation._eval_metrics import (
    EvalMetrics,
    count_from_json,
    metrics_from_json,
    number_to_json,
    seconds_from_json,
)

_logger = logging.getLogger(__name__)

LEARNING_CURVE_FILE = "learning_curve.json"
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """Defines when one checkpoint is better than another."""

    metric: str  # the deciding metric, as metric_fn names it, or `loss`
    mode: str = "max"  # "max" if higher is better, "min" if lower is
    # evaluations in a row without a better value after which training stops; None never stops.
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            raise ValueError(f"mode={self.mode!r} is not valid; give 'max' or 'min'.")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience={self.patience} is not valid; give 1 or more, or None.")

    def is_better(self, value: float, than: float) -> bool:
        """Returns whether a value is better than another; NaN is worst."""
        if math.isnan(value) or math.isnan(than):
            return not math.isnan(value)
        return value > than if self.mode == "max" else value < than

    def value_in(self, metrics: EvalMetrics) -> float:
        """Returns the deciding metric's value."""
        if self.metric not in metrics.overall:
            known = ", ".join(sorted(metrics.overall))
            raise ValueError(
                f"best_metric={self.metric!r} is not among the model's metrics ({known}): return it from "
                "metric_fn, or name one of them."
            )
        return metrics.overall[self.metric]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One evaluation during a training."""

    metrics: EvalMetrics  # the metrics at step `metrics.global_step`
    time: float  # when it ended, in seconds since 1970

    @property
    def step(self) -> int:
        """The global step evaluated."""
        assert self.metrics.global_step is not None
        return self.metrics.global_step


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """The evaluations of one training, ordered by step.

    Attributes:
        points: one for each step evaluated.
        goal: the goal by which a point is the best; None: no point is kept as the best.
        best: the best point; None before there is one, or without a goal. It does not change if its step is trained and
            evaluated again after a restart.
        best_checkpoint: the best point's checkpoint, below the curve's folder.
    """

    points: tuple[Point, ...] = ()
    goal: Goal | None = None
    best: Point | None = None
    best_checkpoint: str | None = None

    def at(self, step: int) -> Point | None:
        """Returns the point of a step, or None."""
        return next((point for point in self.points if point.step == step), None)

    def with_point(self, point: Point) -> LearningCurve:
        """Adds a point, or replaces the one at its step."""
        others = [other for other in self.points if other.step != point.step]
        points = sorted([*others, point], key=lambda one: one.step)
        return dataclasses.replace(self, points=tuple(points))

    def with_best(self, point: Point, checkpoint: str) -> LearningCurve:
        """Replaces the best point."""
        return dataclasses.replace(self, best=point, best_checkpoint=checkpoint)

    def with_goal(self, goal: Goal | None) -> LearningCurve:
        """Sets the goal; forgets a best point that was chosen by another metric."""
        # A different patience does not change which point is best.
        same = (
            goal is not None
            and self.goal is not None
            and (goal.metric, goal.mode) == (self.goal.metric, self.goal.mode)
        )
        forgotten: dict[str, Any] = {} if same else {"best": None, "best_checkpoint": None}
        return dataclasses.replace(self, goal=goal, **forgotten)

    def with_checkpoints_moved(self, before: str, after: str) -> LearningCurve:
        """Renames the folder of the points' checkpoints; see `EvalMetrics.with_checkpoint_moved`."""

        def moved(point: Point) -> Point:
            metrics = point.metrics.with_checkpoint_moved(before, after)
            return dataclasses.replace(point, metrics=metrics)

        return dataclasses.replace(
            self,
            points=tuple(moved(point) for point in self.points),
            best=self.best and moved(self.best),
        )

    def would_be_best(self, metrics: EvalMetrics) -> bool:
        """Returns whether metrics are better than the best so far."""
        if self.goal is None:
            return False
        value = self.goal.value_in(metrics)
        if self.best is None:
            return not math.isnan(value)
        return self.goal.is_better(value, self.goal.value_in(self.best.metrics))

    @property
    def evaluations_since_best(self) -> int:
        """The number of points after the best one; all if there is none."""
        return sum(self.best is None or point.step > self.best.step for point in self.points)

    @property
    def stops(self) -> bool:
        """Whether training stops early now."""
        patience = None if self.goal is None else self.goal.patience
        return patience is not None and self.evaluations_since_best >= patience


def write_learning_curve(folder: str, curve: LearningCurve) -> str:
    """Writes `learning_curve.json`; the file appears whole or not at all."""
    goal = curve.goal
    document = {
        "version": _FORMAT_VERSION,
        "metric": None if goal is None else goal.metric,
        "mode": None if goal is None else goal.mode,
        "patience": None if goal is None else goal.patience,
        "best": None if curve.best is None else _point_to_json(curve.best),
        "best_checkpoint": curve.best_checkpoint,
        "points": [_point_to_json(point) for point in curve.points],
    }
    path = os.path.join(folder, LEARNING_CURVE_FILE)
    write_document(path, document)
    return path


def take_up_learning_curve(folder: str) -> LearningCurve | None:
    """Reads the curve of an earlier attempt; None if there is none.

    An unreadable curve is set aside with a warning: the training can still resume from the checkpoints next to it.
    """
    try:
        return read_learning_curve(folder)
    except ValueError as error:
        path = os.path.join(folder, LEARNING_CURVE_FILE)
        aside = f"{path}.aside-{uuid.uuid4().hex[:8]}"
        tf.io.gfile.rename(path, aside)
        _logger.warning(
            "%s It was renamed to %s, and the learning curve starts from scratch.",
            str(error).rstrip("."),
            aside,
        )
        return None


def read_learning_curve(folder: str) -> LearningCurve | None:
    """Reads `learning_curve.json` from a ModelRun's or Model's folder; None if there is none.

    Raises:
        ValueError: the file exists but can't be read; the message names it.
    """
    path = os.path.join(folder, LEARNING_CURVE_FILE)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read()
        document = parse_document(text, newest=_FORMAT_VERSION)
        metric, mode, best = document["metric"], document["mode"], document["best"]
        return LearningCurve(
            points=tuple(_point_from_json(part) for part in document["points"]),
            goal=metric and Goal(metric=metric, mode=mode, patience=document["patience"]),
            best=best and _point_from_json(best),
            best_checkpoint=document["best_checkpoint"],
        )
    except KeyError as error:
        raise ValueError(f"{path} can't be read: it has no {error}.") from error
    except (ValueError, TypeError, AttributeError, tf.errors.OpError) as error:
        raise ValueError(f"{path} can't be read: {str(error).rstrip('.')}.") from error


def compare_losses(training: float, evaluation: float) -> str:
    """Diagnoses a model from its losses on rows that it has seen and on others.

    Args:
        training: The loss of the last recorded training step.
        evaluation: The loss of the last evaluation.

    Returns:
        A sentence that names overfitting if the evaluation's loss is more than twice the training's, else reasons why
        the model may not learn.
    """
    losses = f"training {training:.4g}, evaluation {evaluation:.4g}"
    if overfits(training, evaluation):
        return (
            f"It overfits: the training loss is far below the evaluation's ({losses}). Train for "
            "fewer steps, with more dropout, a smaller model or more rows."
        )
    return (
        f"It does not overfit ({losses}). Train for more steps or at another learning rate, and "
        "check that the features are related to the label."
    )


def overfits(training: float, evaluation: float) -> bool:
    """Returns whether a training loss is less than half of the evaluation's.

    Args:
        training: The loss of the last recorded training step. A negative one, such as a log-likelihood's, never counts
            as overfitting.
        evaluation: The loss of the last evaluation.

    Returns:
        Whether the model fits the rows that it has seen much better than others.
    """
    return 0 <= training < evaluation / 2


def _point_to_json(point: Point) -> dict[str, Any]:
    metrics = point.metrics
    return {
        "global_step": metrics.global_step,
        "time": point.time,
        "seconds": metrics.seconds,
        "num_examples": metrics.num_examples,
        "checkpoint": metrics.checkpoint,
        "metrics": {name: number_to_json(value) for name, value in sorted(metrics.overall.items())},
    }


def _point_from_json(part: Mapping[str, Any]) -> Point:
    metrics = EvalMetrics(
        overall=metrics_from_json(part["metrics"]),
        global_step=count_from_json("global_step", part["global_step"]),
        num_examples=count_from_json("num_examples", part["num_examples"]),
        checkpoint=part["checkpoint"],
        seconds=seconds_from_json(part["seconds"]),
    )
    return Point(metrics=metrics, time=part["time"])
