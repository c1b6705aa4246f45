"""What we want to reach, as ratios between contenders of one run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from benchmarks.summary import METRICS, Row

_TITLES = {metric.field: metric.title for metric in METRICS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One ratio to reach.

    Attributes:
        model: Name of the model.
        field: The metric.
        against: The contender to divide by.
        bound: The ratio wanted: at least for rates, at most for times and memory, and where
            `at_most` says so.
        contender: Whose ratio it is.
        at_most: Whether the ratio may not be larger than the bound.
    """

    model: str
    field: str
    against: str
    bound: float
    contender: str = "ours"
    at_most: bool = False

    def describe(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{self.contender} / {self.against}, {_TITLES[self.field]} {sign} {self.bound:g}"


_TRAIN, _EVALUATE, _PREDICT = (metric.field for metric in METRICS[:3])
_FIRST_STEP, _MEMORY = "first_step_seconds", "memory_mb"

TARGETS = (
    *(
        Target(model=model, field=_TRAIN, against="real", bound=bound)
        for model, bound in (("mlp", 2.0), ("cnn", 1.0), ("wide_and_deep", 1.4))
    ),
    *(
        Target(model=model, field=_TRAIN, against=against, bound=bound)
        for model in ("mlp", "cnn", "wide_and_deep")
        for against, bound in (
            ("bare", 0.95),
            ("keras3", 1.0),
            ("keras3-loop", 1.0),
            ("tf_keras", 1.0),
            ("tf_keras-loop", 1.0),
        )
    ),
    Target(model="mlp", field=_EVALUATE, against="real", bound=2.0),
    Target(model="wide_and_deep", field=_EVALUATE, against="real", bound=1.2),
    Target(model="mlp", field=_PREDICT, against="real", bound=1.5),
    Target(model="wide_and_deep", field=_PREDICT, against="real", bound=1.2),
    *(
        Target(model=model, field=field, against="real", bound=bound, at_most=True)
        for model in ("mlp", "cnn", "wide_and_deep")
        for field, bound in ((_FIRST_STEP, 1.0), (_MEMORY, 1.15))
    ),
    # Eight cores on the same batch may take so much longer than one: rates are the other way round.
    *(
        Target(
            model=model,
            field=_TRAIN,
            against="ours-1-core",
            bound=round(1 / times, 2),
            contender="ours-8-cores",
        )
        for model, times in (("mlp", 2.0), ("cnn", 1.1), ("wide_and_deep", 2.0))
    ),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A target and what was found.

    Attributes:
        target: The target.
        ratio: The ratio of the medians.
    """

    target: Target
    ratio: float

    @property
    def reached(self) -> bool:
        if self.target.at_most:
            return self.ratio <= self.target.bound
        return self.ratio >= self.target.bound


def outcomes(summaries: Mapping[str, Sequence[Row]]) -> list[Outcome]:
    """Checks the targets whose contenders were measured.

    Args:
        summaries: The rows of each model.
    """
    found = []
    for target in TARGETS:
        rows = {row.contender: row for row in summaries.get(target.model, ()) if row.cells}
        if target.contender in rows and target.against in rows:
            ours, theirs = (
                rows[name].cells[target.field].median for name in (target.contender, target.against)
            )
            if not math.isnan(ours / theirs):
                found.append(Outcome(target, ours / theirs))
    return found
