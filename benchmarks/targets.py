"""Lists the targets, as ratios between contenders of one run."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.plan import FULL, OF_REAL_SIZE
from benchmarks.rounds import Round
from benchmarks.summary import METRICS, Interval, interval, ratios

_TITLES = {metric.field: metric.title for metric in METRICS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A ratio to reach."""

    model: str
    field: str
    # The contender in the denominator, or the best of several; None compares the number itself.
    against: str | tuple[str, ...] | None
    # A lower bound for rates; an upper bound if `at_most` is set.
    bound: float
    contender: str = "ours"
    at_most: bool = False

    def describe(self) -> str:
        sign = "<=" if self.at_most else ">="
        against = f" / {' or '.join(self.references)}" if self.references else ""
        return f"{self.contender}{against}, {_TITLES[self.field]} {sign} {self.bound:g}"

    @property
    def references(self) -> tuple[str, ...]:
        """The contenders whose best is the denominator."""
        if self.against is None:
            return ()
        return (self.against,) if isinstance(self.against, str) else self.against


_TRAIN, _EVALUATE, _PREDICT = (metric.field for metric in METRICS[:3])
_FIRST_STEP, _MEMORY = "first_step_seconds", "memory_mb"


def _each(bounds: Mapping[str, float], field: str, against: Any, **options: Any) -> list[Target]:
    """Returns a target for each model with a bound."""
    return [
        Target(model=model, field=field, against=against, bound=bound, **options)
        for model, bound in bounds.items()
    ]


def _all_at(bound: float) -> dict[str, float]:
    return dict.fromkeys(FULL, bound)


TARGETS = (
    *_each({"mlp": 2.0, "cnn": 1.0, "wide_and_deep": 1.4}, _TRAIN, "real"),
    *_each(_all_at(1.0), _TRAIN, "bare"),
    *_each(_all_at(1.1), _TRAIN, "keras3"),
    *_each(_all_at(1.1), _TRAIN, "keras3-loop"),
    *_each(_all_at(1.1), _TRAIN, "tf_keras"),
    *_each(_all_at(1.1), _TRAIN, "tf_keras-loop"),
    *(
        target
        for contender in ("ours", "ours-2-cores")
        for against in ("real", "keras3")
        for field, bound, most in (
            (_TRAIN, 1.0, False),
            (_FIRST_STEP, 1.0, True),
            (_MEMORY, 1.1, True),
        )
        for target in _each(
            dict.fromkeys(OF_REAL_SIZE, bound), field, against, contender=contender, at_most=most
        )
    ),
    *_each({"mlp": 2.0, "cnn": 1.1, "wide_and_deep": 1.5}, _EVALUATE, "real"),
    *_each({"mlp": 2.0, "cnn": 1.1, "wide_and_deep": 1.5}, _PREDICT, "real"),
    *_each({"mlp": 500_000}, _PREDICT, None),
    *_each(_all_at(0.9), _FIRST_STEP, "real", at_most=True),
    *_each(_all_at(1.1), _MEMORY, "real", at_most=True),
    *_each({"mlp": 3.5}, _TRAIN, "real", contender="ours-auto"),
    *_each(_all_at(0.97), _TRAIN, ("ours", "ours-compiled"), contender="ours-auto"),
    # Eight cores on the same batch may take 2, 1.1 and 2 times as long as one; rates are the inverse.
    *_each(
        {"mlp": 0.5, "cnn": 0.91, "wide_and_deep": 0.5},
        _TRAIN,
        "ours-1-core",
        contender="ours-8-cores",
    ),
    # The graph grows at most in proportion to the cores.
    *_each({"mlp": 60}, _FIRST_STEP, None, contender="ours-64-cores", at_most=True),
    *_each({"mlp": 8}, _FIRST_STEP, "ours-8-cores", contender="ours-64-cores", at_most=True),
    *_each({"mlp": 8}, _MEMORY, "ours-8-cores", contender="ours-64-cores", at_most=True),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A target and its result."""

    target: Target
    # The ratio, or the number itself.
    ratio: Interval

    @property
    def verdict(self) -> str:
        """`reached` or `missed` if the whole interval agrees; else `open`."""
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
    """Returns whether all of a model's targets have narrow enough intervals."""
    return all(outcome.ratio.width <= WIDTH for outcome in outcomes({model: rounds}))
