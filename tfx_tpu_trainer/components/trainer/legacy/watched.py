"""`train_and_evaluate`, watched: what its evaluations found, and which of them the export belongs to."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.whole_files import parse_document, write_document
from tfx_tpu_trainer.compat.tfma_export import evaluation_receiver
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    LearningCurve,
    Point,
    take_up_learning_curve,
    write_learning_curve,
)
from tfx_tpu_trainer.components.trainer.legacy.training_spec import TrainingSpec
from tfx_tpu_trainer.estimator import Estimator
from tfx_tpu_trainer.estimator.extending import (
    CheckpointEvaluator,
    EvalResult,
    EvaluatedCheckpoint,
    EvaluationListener,
    run_schedule,
)

v1 = tf.compat.v1

EXPORT_FILE = "last_export.json"
"""Which export of the first exporter is the newest, and its step: for an attempt that goes on from here."""

_logger = logging.getLogger(__name__)
_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """What the exporter has exported last.

    Attributes:
        path: The SavedModel.
        receiver_fn: The receiver that it was exported with; `None` where the exporter did not let the
            estimator export.
        metrics: The evaluation that it was exported after.
    """

    path: str
    receiver_fn: Callable[[], Any] | None
    metrics: EvalMetrics


class WatchedSchedule(EvaluationListener):
    """Runs `train_and_evaluate` and remembers the evaluations and the first exporter's exports.

    Exports get the signature `transform_features` on their way, so that the stock Evaluator finds the
    labels in them. The caller's estimator stays as it is: what is watched is a copy of it.
    """

    def __init__(
        self,
        spec: TrainingSpec,
        *,
        folder: str,
        goes_on: bool = False,
        before_writing: Callable[[], None] = lambda: None,
        stall_timeout_secs: float | None = None,
    ) -> None:
        """Prepares the schedule."""
        self._spec = spec
        self._before_writing = before_writing
        self._folder = folder
        self._results: dict[str | None, EvalMetrics] = {}
        self._receiver_fns: dict[str, Callable[[], Any]] = {}
        self._last: EvaluatedCheckpoint | None = None
        self.curve = (take_up_learning_curve(folder) if goes_on else None) or LearningCurve()
        self.export = self._export_of_earlier_attempt() if goes_on else None
        self.estimator = self._watched(_with_stall_timeout(spec.estimator, stall_timeout_secs))

    def run(self, *listeners: v1.train.CheckpointSaverListener) -> None:
        """Trains, evaluates and exports.

        Where the training had reached its last step before (in an attempt that failed after it), the
        last checkpoint is evaluated and exported all the same.
        """
        train_spec, eval_spec = self._spec.train_spec, self._spec.eval_spec
        told = (*listeners, *train_spec.saving_listeners)
        run_schedule(
            self.estimator,
            train_spec._replace(saving_listeners=told),
            eval_spec,
            listener=self,
        )
        if self._last is None:
            evaluator = CheckpointEvaluator(
                self.estimator, eval_spec, max_steps=train_spec.max_steps
            )
            self.after_eval(evaluator.evaluate_newest())

    def after_eval(self, evaluated: EvaluatedCheckpoint | None) -> bool:
        """Remembers an evaluation and what was exported after it."""
        if evaluated is None:
            return True
        self._last = evaluated
        metrics = self._results[evaluated.checkpoint_path]
        self.curve = self.curve.with_point(Point(metrics=metrics, time=time.time()))
        exported = evaluated.exports[0]
        if exported is not None:
            path = tf.compat.as_str_any(exported)
            self.export = Export(
                path=path, receiver_fn=self._receiver_fns.get(path), metrics=metrics
            )
        self._write_down()
        return True

    @property
    def last_step(self) -> int | None:
        """The global step of the last evaluation; `None` where there was none."""
        return None if self._last is None else self._last.global_step

    def _write_down(self) -> None:
        self._before_writing()
        write_learning_curve(self._folder, self.curve)
        if self.export is not None:
            document = {
                "version": _FORMAT_VERSION,
                "path": self.export.path,
                "global_step": self.export.metrics.global_step,
            }
            write_document(os.path.join(self._folder, EXPORT_FILE), document)

    def _export_of_earlier_attempt(self) -> Export | None:
        path = os.path.join(self._folder, EXPORT_FILE)
        if not tf.io.gfile.exists(path):
            return None
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                document = parse_document(file.read(), newest=_FORMAT_VERSION)
            exported, step = str(document["path"]), document["global_step"]
        except (KeyError, ValueError) as error:
            _logger.warning(
                "%s can't be read (%s): the export of an earlier attempt is not used.", path, error
            )
            return None
        point = self.curve.at(step)
        if point is None or not tf.io.gfile.isdir(exported):
            return None
        return Export(path=exported, receiver_fn=None, metrics=point.metrics)

    def _watched(self, estimator: Estimator) -> Estimator:
        watched: Any = copy.copy(estimator)
        watched.evaluate_result = functools.partial(self._evaluate, estimator)
        for name in ("export_saved_model", "export_savedmodel"):
            setattr(watched, name, functools.partial(self._export, getattr(estimator, name)))
        return watched

    def _evaluate(self, estimator: Estimator, *args: Any, **kwargs: Any) -> EvalResult:
        result = estimator.evaluate_result(*args, **kwargs)
        self._results[result.checkpoint_path] = EvalMetrics.from_result(result)
        return result

    def _export(
        self,
        export: Callable[..., Any],
        export_dir_base: str,
        serving_input_receiver_fn: Callable[[], Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        receiver_fn = functools.partial(
            evaluation_receiver,
            eval_input_receiver_fn=self._spec.eval_input_receiver_fn,
            serving_input_receiver_fn=serving_input_receiver_fn,
        )
        exported = export(export_dir_base, receiver_fn, *args, **kwargs)
        self._receiver_fns[tf.compat.as_str_any(exported)] = receiver_fn
        return exported


def _with_stall_timeout(estimator: Estimator, seconds: float | None) -> Estimator:
    """Returns an estimator whose sessions end when they make no step, unless its own config says when."""
    if seconds is None or estimator.config.stall_timeout_secs is not None:
        return estimator
    timed = copy.copy(estimator)
    timed._config = estimator.config.replace(stall_timeout_secs=seconds)
    return timed
