"""Trains a trial, reports its results, and writes events for TensorBoard's HParams plugin."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras_tuner
import tensorflow as tf
from rich import box
from rich.table import Table
from tensorboard.plugins.hparams import api, api_pb2
from tensorboard.plugins.hparams import summary as session_summary

from tfx_tpu_trainer._support.terminal import PlainConsole, text
from tfx_tpu_trainer._support.whole_files import files_below, write_document
from tfx_tpu_trainer.components.evaluation import EvalMetrics
from tfx_tpu_trainer.components.evaluation._learning_curve import (
    LEARNING_CURVE_FILE,
    Goal,
    take_up_learning_curve,
)
from tfx_tpu_trainer.components.trainer.early_stopping import EvaluatedTraining
from tfx_tpu_trainer.components.trainer.resume import (
    RECORD_FILE,
    CheckpointFolder,
    StillOursListener,
    TrainingIdentity,
    check_before_writing,
)
from tfx_tpu_trainer.components.trainer.rows import failures_explained
from tfx_tpu_trainer.components.tuning._search_space import SearchSpace
from tfx_tpu_trainer.components.tuning._tune_job import TuneJob
from tfx_tpu_trainer.estimator.extending import NanLossError, OpenEvaluation

_logger = logging.getLogger(__name__)

Report = Callable[[EvalMetrics], str]
"""Takes the metrics of an evaluation; returns the reason to end the trial now, or `""`."""


class DivergedTrialError(RuntimeError):
    """A trial's loss, or its objective, is not finite."""


class UnknownObjectiveError(ValueError):
    """The model has no metric with the objective's name, so no trial can be scored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialTraining:
    job: TuneJob
    folder: str  # holds the trial's checkpoints and events
    params: Mapping[str, Any]

    def run(self, *, first: int, last: int, report: Report, source: str | None = None) -> None:
        """Trains, and evaluates at equal intervals."""
        job, folder = self.job, self._folder(source)
        folder.take_up()
        cache = job.row_cache(self.folder)
        evaluation = OpenEvaluation(
            job.estimator(self.params, self.folder, step=0),
            job.eval_input_fn,
            steps=job.fn_args.eval_steps,
            keeps_session=True,
        )
        training = EvaluatedTraining(
            estimator_at=lambda step: job.estimator(self.params, self.folder, step=step),
            train_input_fn=job.train_input_fn(cache),
            evaluation=evaluation,
            max_steps=0,
            every_steps=job.fn_args.train_steps,
            every_secs=None,
            goal=None,
            saving_listeners=[StillOursListener(folder)],
            before_writing=check_before_writing(folder),
            row_cache=cache,
            batch_size=job.settings.train_batch_size,
        )
        try:
            for evaluations in range(first + 1, last + 1):
                step = job.steps_of(evaluations)
                metrics = self._metrics_at(training, step)
                reason = report(metrics)
                if (metrics.global_step or 0) < step:
                    reason = "the training input has no more rows"
                if reason and evaluations < last:
                    _logger.info("The trial ends early: %s.", reason)
                    break
        finally:
            evaluation.close()
            if cache is not None:
                cache.release()

    def _metrics_at(self, training: EvaluatedTraining, step: int) -> EvalMetrics:
        """Trains to a step, unless an earlier attempt did, and returns the metrics there."""
        curve = take_up_learning_curve(self.folder)
        if curve is None or curve.at(step) is None:
            part = dataclasses.replace(training, max_steps=step)
            try:
                with failures_explained(self.job.rows):
                    curve = part.run()
            except NanLossError as error:
                raise DivergedTrialError(f"its loss became NaN at step {error.step}") from error
        reached = [point for point in curve.points if point.step <= step]
        metrics, objective = reached[-1].metrics, self.job.tune.objective
        if objective not in metrics.overall:
            raise UnknownObjectiveError(
                f"objective={objective!r} is not among the model's metrics ({', '.join(sorted(metrics.overall))}); "
                "return it from metric_fn, or name one of them"
            )
        value = metrics.overall[objective]
        wrong = set(metrics.diverged) | (set() if math.isfinite(value) else {objective})
        if wrong:
            found = ", ".join(f"{name} is {metrics.overall[name]}" for name in sorted(wrong))
            raise DivergedTrialError(f"{found} at step {metrics.global_step}")
        return metrics

    def _folder(self, source: str | None) -> CheckpointFolder:
        """Makes the trial's folder, with the checkpoints of the trial that it continues."""
        description = {"search": self.job.identity.digest, "params": dict(self.params)}
        folder = CheckpointFolder(path=self.folder, identity=TrainingIdentity(description))
        record = os.path.join(self.folder, RECORD_FILE)
        if source is None or tf.io.gfile.exists(record):
            return folder
        if not tf.io.gfile.isdir(source):
            _logger.warning(
                "%s is missing, so this trial starts at step 0: give all processes of the search "
                "the same directory (the setting `directory`).",
                source,
            )
            return folder
        # Hyperband trains the best trials of a rung further, as new trials. Each begins with a copy of the old trial's
        # checkpoints; the record is written last, so a folder without it is an incomplete copy. Events are not
        # copied: TensorBoard would show the old trial's steps twice.
        if tf.io.gfile.isdir(self.folder):
            # An attempt was stopped while copying.
            tf.io.gfile.rmtree(self.folder)
        events = [os.path.basename(name) for name in files_below(source) if _is_of_events(name)]
        earlier = CheckpointFolder(path=source, identity=TrainingIdentity({}))
        earlier.publish(self.folder, leaving_out=events)
        write_document(record, {"training": description})
        return folder


def remove_checkpoints(folder: str) -> None:
    """Removes the files that only a continued training would read; keeps events and the learning curve."""
    for name in tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ():
        path = os.path.join(folder, name.rstrip("/"))
        if tf.io.gfile.isdir(path):
            if not any(map(_is_of_events, files_below(path))):
                tf.io.gfile.rmtree(path)
        elif name != LEARNING_CURVE_FILE and not _is_of_events(name):
            tf.io.gfile.remove(path)


def _is_of_events(name: str) -> bool:
    return ".tfevents." in name


Curve = Mapping[int, float]
"""The objective of a trial by the step of its evaluation."""


def reason_to_stop(
    curve: Curve,
    others: Sequence[Curve],
    *,
    goal: Goal,
    least_others: int | None,
) -> str:
    """Returns why a trial should stop now; `""` if it should not.

    By the median rule of Google Vizier, a trial ends if its best value is worse than the median of the other trials'
    averages up to the same step.
    """
    # Example with higher being better: at step 200 the others' averages are 0.7, 0.8 and 0.6, with the median 0.7, so
    # a trial with {100: 0.5, 200: 0.69} ends. It is compared with averages instead of the others' best values so
    # that a slow starter that is catching up stays. Only others that have come as far count: those pruned earlier would
    # lower the bar.
    best = _best(curve, goal)
    since = [step for step in curve if step > best]
    if goal.patience is not None and len(since) >= goal.patience:
        return f"{goal.metric} has not improved in {len(since)} evaluations"
    if least_others is None:
        return ""
    step = max(curve)
    averages = [
        statistics.fmean(value for at, value in other.items() if at <= step)
        for other in others
        if any(at <= step for at in other) and max(other) >= step
    ]
    if len(averages) < least_others:
        return ""
    median = statistics.median(averages)
    if not goal.is_better(median, than=curve[best]):
        return ""
    return (
        f"at step {step} its best {goal.metric}, {curve[best]:.4g}, is worse than the median of {len(averages)} "
        f"others, {median:.4g}"
    )


def _best(curve: Curve, goal: Goal) -> int:
    """Returns the first step with the best value."""
    best = min(curve)
    for step in sorted(curve):
        if goal.is_better(curve[step], than=curve[best]):
            best = step
    return best


_Status = keras_tuner.engine.trial.TrialStatus
_WIDEST = 200
_hp = keras_tuner.engine.hyperparameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial, finished or not."""

    trial_id: str
    values: Mapping[str, Any]  # hyperparameter -> value
    status: str  # keras-tuner's status, such as "COMPLETED"
    score: float | None  # the best value of the objective
    step: int | None  # the last evaluated step
    message: str = ""  # why it was abandoned


def results_of(oracle: keras_tuner.Oracle, space: SearchSpace) -> list[TrialResult]:
    """Returns a search's trials, the best first and those without a score last."""
    found = [_result(trial, oracle.objective.name, space) for trial in oracle.trials.values()]
    worst = -math.inf if oracle.objective.direction == "max" else math.inf
    sign = -1 if oracle.objective.direction == "max" else 1
    return sorted(
        found, key=lambda one: (sign * (worst if one.score is None else one.score), one.trial_id)
    )


def _result(trial: Any, objective: str, space: SearchSpace) -> TrialResult:
    exists = trial.metrics.exists(objective)
    steps = [point.step for point in trial.metrics.get_history(objective)] if exists else []
    return TrialResult(
        trial_id=trial.trial_id,
        values=space.shown_values_of(trial.hyperparameters),
        status=trial.status,
        score=trial.score if trial.status == _Status.COMPLETED else None,
        step=max(steps, default=0) or None,
        message=trial.message or "",
    )


def table_of(results: Sequence[TrialResult], *, objective: str) -> str:
    """Formats trials as a table of text."""
    names = list(dict.fromkeys(name for one in results for name in one.values))
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("trial", objective, "step", *names, ""):
        table.add_column(text(heading), no_wrap=heading != "")
    for one in results:
        score = "-" if one.score is None else f"{one.score:.5g}"
        ended = "" if one.status == _Status.COMPLETED else one.message or one.status.lower()
        values = [_shown(one.values.get(name)) for name in names]
        step = "-" if one.step is None else str(one.step)
        table.add_row(*map(text, (one.trial_id, score, step, *values, ended)))
    # As wide as necessary, so no value is truncated.
    written = io.StringIO()
    PlainConsole(file=written, width=_WIDEST).print(table)
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_search(folder: str, space: keras_tuner.HyperParameters, objective: str) -> None:
    """Writes the search space and the metric to optimize."""
    names = {one.name: one for one in space.space}
    hparams = [api.HParam(name, _domain(one)) for name, one in names.items()]
    metrics = [api.Metric(objective, group="eval", display_name=objective)]
    _write(folder, api.hparams_config_pb(hparams=hparams, metrics=metrics))


def write_trial_begin(folder: str, trial_id: str, values: Mapping[str, Any]) -> None:
    """Writes a trial's values."""
    # None marks a value that another one makes irrelevant.
    known = {name: value for name, value in values.items() if value is not None}
    _write(folder, api.hparams_pb(known, trial_id=f"trial_{trial_id}"))


def write_trial_end(folder: str, *, failed: bool) -> None:
    """Writes how a trial ended."""
    status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
    _write(folder, session_summary.session_end_pb(status))


def _domain(one: Any) -> Any:
    if isinstance(one, _hp.Boolean):
        return api.Discrete([True, False])
    if isinstance(one, _hp.Choice):
        return api.Discrete(list(one.values))
    if isinstance(one, _hp.Int):
        return api.IntInterval(one.min_value, one.max_value)
    if isinstance(one, _hp.Float):
        return api.RealInterval(float(one.min_value), float(one.max_value))
    return api.Discrete([one.default])


def _write(folder: str, summary: Any) -> None:
    # A FileWriter would write a graph; this writer has none.
    with (
        tf.Graph().as_default(),
        tf.compat.v1.summary.FileWriter(folder, filename_suffix=".hparams") as writer,
    ):
        writer.add_summary(summary.SerializeToString())
