"""What a search has found: its trials as values, and as a table, the best one first."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras_tuner
from rich import box
from rich.table import Table

from tfx_tpu_trainer._support.terminal import PlainConsole, text
from tfx_tpu_trainer.components.tuning._search_space import SearchSpace

_Status = keras_tuner.engine.trial.TrialStatus
_WIDEST = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial, ended or not.

    Attributes:
        trial_id: Its number.
        values: Its values by the names of hyperparameters.
        status: keras-tuner's word for how it stands, such as "COMPLETED".
        score: The best value of the objective; `None` where it has none.
        step: The last step that was evaluated; `None` before there is one.
        message: Why it was given up, or `""`.
    """

    trial_id: str
    values: Mapping[str, Any]
    status: str
    score: float | None
    step: int | None
    message: str = ""


def results_of(oracle: keras_tuner.Oracle, space: SearchSpace) -> list[TrialResult]:
    """Returns the trials of a search, the best one first and those without a score last."""
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
    """Returns trials as a table of text."""
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
    # As wide as it needs to be, so that no value is cut.
    written = io.StringIO()
    PlainConsole(file=written, width=_WIDEST).print(table)
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
