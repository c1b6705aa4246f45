"""Writes a search's results: a table of trials, the best first, and events for TensorBoard's HParams plugin."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras_tuner
import tensorflow as tf
from rich import box
from rich.table import Table
from tensorboard.plugins.hparams import api, api_pb2
from tensorboard.plugins.hparams import summary as session_summary

from tfx_tpu_trainer._support.terminal import PlainConsole, text
from tfx_tpu_trainer.components.tuning._search_space import SearchSpace

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
    # As wide as necessary, so that no value is truncated.
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
