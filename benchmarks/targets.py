"""What we want to reach, as ratios between contenders of one run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from benchmarks.plan import OF_REAL_SIZE
from benchmarks.rounds import Round
from benchmarks.summary import METRICS, Interval, interval, ratios

_TITLES = {metric.field: metric.title for metric in METRICS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One ratio to reach.

    Attributes:
        model: Name of the model.
        field: The metric.
        against: The contender to divide by, or several: the best of them. None compares the
            number itself.
        bound: The ratio wanted: at least for rates, at most for times and memory, and where
            `at_most` says so.
        contender: Whose ratio it is.
        at_most: Whether the ratio may not be larger than the bound.
    """

    model: str
    field: str
    against: str | tuple[str, ...] | None
    bound: float
    contender: str = "ours"
    at_most: bool = False

    def describe(self) -> str:
        sign = "<=" if self.at_most else ">="
        against = f" / {' or '.join(self.references)}" if self.references else ""
        return f"{self.contender}{against}, {_TITLES[self.field]} {sign} {self.bound:g}"

    @property
    def references(self) -> tuple[str, ...]:
        """The contenders to divide by the best of."""
        if self.against is None:
            return ()
        return (self.against,) if isinstance(self.against, str) else self.against


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
            ("bare", 1.0),
            ("keras3", 1.1),
            ("keras3-loop", 1.1),
            ("tf_keras", 1.1),
            ("tf_keras-loop", 1.1),
        )
    ),
    *(
        Target(
            model=model,
            field=field,
            against=against,
            bound=bound,
            contender=contender,
            at_most=most,
        )
        for model in OF_REAL_SIZE
        for contender in ("ours", "ours-2-cores")
        for against in ("real", "keras3")
        for field, bound, most in (
            (_TRAIN, 1.0, False),
            (_FIRST_STEP, 1.0, True),
            (_MEMORY, 1.1, True),
        )
    ),
    *(
        Target(model=model, field=field, against="real", bound=bound)
        for field in (_EVALUATE, _PREDICT)
        for model, bound in (("mlp", 2.0), ("cnn", 1.1), ("wide_and_deep", 1.5))
    ),
    Target(model="mlp", field=_PREDICT, against=None, bound=500_000),
    *(
        Target(model=model, field=field, against="real", bound=bound, at_most=True)
        for model in ("mlp", "cnn", "wide_and_deep")
        for field, bound in ((_FIRST_STEP, 0.9), (_MEMORY, 1.15))
    ),
    Target(model="mlp", field=_TRAIN, against="real", bound=3.5, contender="ours-auto"),
    *(
        Target(
            model=model,
            field=_TRAIN,
            against=("ours", "ours-compiled"),
            bound=0.97,
            contender="ours-auto",
        )
        for model in ("mlp", "cnn", "wide_and_deep")
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
    # The graph grows at most as the number of cores does.
    Target(
        model="mlp",
        field=_FIRST_STEP,
        against=None,
        bound=60,
        contender="ours-64-cores",
        at_most=True,
    ),
    *(
        Target(
            model="mlp",
            field=field,
            against="ours-8-cores",
            bound=8,
            contender="ours-64-cores",
            at_most=True,
        )
        for field in (_FIRST_STEP, _MEMORY)
    ),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A target and what was found.

    Attributes:
        target: The target.
        ratio: The ratio, or the number itself, and its interval over the rounds.
    """

    target: Target
    ratio: Interval

    @property
    def verdict(self) -> str:
        """`reached` or `missed` where all of the interval says so; else `open`."""
        ends, bound = (self.ratio.low, self.ratio.high), self.target.bound
        good = [end <= bound if self.target.at_most else end >= bound for end in ends]
        if math.isnan(self.ratio.low) or any(good) != all(good):
            return "open"
        return "reached" if all(good) else "missed"


WIDTH = 0.1
"""The width of an interval, relative to its ratio, at which the ratio is known well enough."""


def outcomes(rounds: Mapping[str, Sequence[Round]]) -> list[Outcome]:
    """Checks the targets whose contenders were measured."""
    found = []
    for target in TARGETS:
        values = ratios(
            rounds.get(target.model, ()),
            target.field,
            target.contender,
            target.references,
            best=min if target.at_most else max,
        )
        if values:
            found.append(Outcome(target, interval(values)))
    return found


def settled(model: str, rounds: Sequence[Round]) -> bool:
    """Tells whether the intervals of all targets of a model are narrow enough."""
    return all(outcome.ratio.width <= WIDTH for outcome in outcomes({model: rounds}))
