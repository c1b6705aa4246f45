"""Sweeps slices: the largest batch that fits each, the training's time and price there, and the choice."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tfx_tpu_trainer.hardware import CHIPS, TpuSpec, find_slice
from tfx_tpu_trainer.preflight._compiling import CompilerOptions
from tfx_tpu_trainer.preflight._price import (
    PREEMPTED_EVERY,
    QUEUE_SECONDS,
    START_UP_SECONDS,
    Prices,
    TrainingCost,
    TrainingLength,
    costs_by_way,
    price_text,
    training_cost,
)
from tfx_tpu_trainer.preflight._report import (
    PreflightReport,
    bytes_text,
    duration_text,
    share_text,
)
from tfx_tpu_trainer.preflight._run import PreflightModel, preflight

Outcome = Literal["fits", "too large", "failed", "skipped", "not divisible"]

# Problems that a smaller batch may solve; all others are independent of the size.
_OF_THE_SIZE = frozenset({"memory", "timeout", "crash"})

_CHIP_HOURS = Prices(
    currency="chip hours", chip_hour=dict.fromkeys(CHIPS, 1.0), source="no price file"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepEntry:
    """A batch size on a slice."""

    tpu: str  # the slice, such as `"v5e:2x4"`
    batch_size: int  # rows of a step over all replicas
    # `"fits"`; `"too large"` if it needs more HBM than there is, or the compiler gave up on it; `"failed"` if it does
    # not compile at any size; `"skipped"` after a larger one that fits or has failed; `"not divisible"` by the
    # replicas.
    outcome: Outcome
    detail: str  # need and limit, or the problem
    report: PreflightReport | None = None  # the report, if it was compiled


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow:
    """A slice, and one way to get it."""

    tpu: str
    entry: SweepEntry  # of the largest batch that fits, or of the smallest that does not
    cost: TrainingCost | None  # if it fits and the training's length is known
    chosen: bool
    why: str  # the reason for or against choosing it

    @property
    def num_chips(self) -> int:
        """The slice's number of chips."""
        return find_slice(self.tpu).num_chips

    @property
    def shares(self) -> str:
        """Describes how a step's rows are shared, such as `"1,024 rows in a step, 128 on each core"`."""
        assert self.entry.report is not None
        each = self.entry.batch_size // self.entry.report.num_replicas
        where = "replica" if self.entry.report.num_cores_per_replica > 1 else "core"
        return f"{self.entry.batch_size:,} rows in a step, {each:,} on each {where}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """All batch sizes on all slices.

    Attributes:
        model: Name of the model.
        steps: Names of the steps that had to fit.
        entries: By slice, largest batch size first.
        length: The length of the training; `None` to choose no slice.
        prices: The prices of chips; `None` to count chip hours.
        deadline: Seconds that the training may take, or `None`.
        start_up_seconds: How long a slice is paid for before the first step.
        preempted_every: How often a Spot slice is taken away at the slow end, in seconds.
        queue_seconds: How long a flex-start request waits for its slice at the slow end.
    """

    model: str
    steps: tuple[str, ...]
    entries: tuple[SweepEntry, ...]
    length: TrainingLength | None = None
    prices: Prices | None = None
    deadline: float | None = None
    start_up_seconds: float = START_UP_SECONDS
    preempted_every: float = PREEMPTED_EVERY
    queue_seconds: float = QUEUE_SECONDS

    @property
    def largest(self) -> dict[str, int | None]:
        """Slice -> the largest batch size that fits; `None` if none does."""
        found: dict[str, int | None] = {}
        for entry in self.entries:
            if entry.outcome == "fits" or entry.tpu not in found:
                found[entry.tpu] = entry.batch_size if entry.outcome == "fits" else None
        return found

    @property
    def ok(self) -> bool:
        """Whether every slice has a batch size that fits."""
        return None not in self.largest.values()

    @functools.cached_property
    def costs(self) -> tuple[TrainingCost, ...]:
        """The training's time and price, for each slice that its batch fits and each way to get it."""
        if self.length is None or "train" not in self.steps:
            return ()
        prices = self.prices or _CHIP_HOURS
        found: list[TrainingCost] = []
        for entry in self.entries:
            if entry.outcome == "fits" and entry.report is not None:
                found += costs_by_way(
                    training_cost(
                        entry.report, self.length, prices, start_up_seconds=self.start_up_seconds
                    ),
                    prices,
                    preempted_every=self.preempted_every,
                    queue_seconds=self.queue_seconds,
                )
        return tuple(found)

    @property
    def choice(self) -> TrainingCost | None:
        """The cheapest of `costs` within the deadline at the slow end; of equal ones, that with the fewest chips."""
        return min(
            (each for each in self.costs if self.deadline is None or each.meets(self.deadline)),
            key=lambda each: (each.cost, find_slice(each.tpu).num_chips),
            default=None,
        )

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """One row for each slice and each way to get it."""
        rows = []
        for tpu in self.largest:
            costs: list[TrainingCost | None] = [each for each in self.costs if each.tpu == tpu]
            rows += [
                SweepRow(
                    tpu=tpu,
                    entry=self._entry_of(tpu),
                    cost=cost,
                    chosen=cost is not None and cost == self.choice,
                    why=self._why(tpu, cost),
                )
                for cost in costs or [None]
            ]
        return tuple(rows)

    @property
    def chosen_row(self) -> SweepRow | None:
        """The chosen row."""
        return next((row for row in self.rows if row.chosen), None)

    @property
    def missed(self) -> str:
        """Why no slice is chosen: the nearest one and what would have to change; empty if one is chosen."""
        if self.choice is not None:
            return ""
        if not self.costs:
            entry = min(self.entries, key=_share_needed)
            return (
                f"The model trains on none of these slices. The nearest is {entry.tpu} with {entry.batch_size:,} rows "
                f"({entry.detail}): give other batch sizes with --batch_size, or other slices with --tpu."
            )
        assert self.deadline is not None and self.length is not None
        nearest = min(self.costs, key=lambda each: each.latest_seconds)
        steps = self.length.rows(nearest.batch_size) / nearest.batch_size
        left = (self.deadline - nearest.start_up_seconds) / (
            nearest.slow_seconds - nearest.start_up_seconds
        )
        shorter = (
            f"a training of at most {int(left * steps):,} steps of {nearest.batch_size:,} rows"
            if left * steps >= 1
            else "a shorter start-up (--start_up)"
        )
        return (
            f"No slice finishes within {duration_text(self.deadline)}. The nearest is {nearest.name}, which takes "
            f"{duration_text(nearest.latest_seconds)} at the slow end: give --deadline "
            f"{math.ceil(nearest.latest_seconds / 60)}m, faster slices with --tpu, or {shorter}."
        )

    def _entry_of(self, tpu: str) -> SweepEntry:
        entries = [entry for entry in self.entries if entry.tpu == tpu]
        fitting = [entry for entry in entries if entry.outcome == "fits"]
        compiled = [entry for entry in entries if entry.report is not None]
        return [*entries[:1], *compiled, *fitting][-1]

    def _why(self, tpu: str, cost: TrainingCost | None) -> str:
        if cost is None:
            entry = self._entry_of(tpu)
            return "" if entry.outcome == "fits" else entry.detail
        within = "" if self.deadline is None else f" within {duration_text(self.deadline)}"
        if self.deadline is not None and not cost.meets(self.deadline):
            waits = f", after up to {duration_text(cost.queue_seconds)} of waiting"
            return f"not{within}{waits if cost.queue_seconds else ''}"
        chosen = self.choice
        assert chosen is not None  # this one is in time
        if cost == chosen:
            return f"the cheapest{within}"
        more = cost.cost - chosen.cost
        if round(more, 2):
            return f"{price_text(more, cost.currency)} more than on {chosen.name}"
        return f"no cheaper than {chosen.name}"

    def to_json(self) -> dict[str, Any]:
        """Returns the sweep as JSON values, reports included."""
        choice, chosen = self.choice, self.chosen_row
        return {
            "format": "tfx_tpu_trainer.preflight_sweep/1",
            "ok": self.ok,
            "model": self.model,
            "steps": list(self.steps),
            "largest": self.largest,
            "choice": choice
            and chosen
            and {
                "tpu": choice.tpu,
                "way": choice.way,
                "batch_size": choice.batch_size,
                "why": chosen.why,
            },
            "costs": [cost.to_json() for cost in self.costs],
            "entries": [
                {
                    "tpu": entry.tpu,
                    "batch_size": entry.batch_size,
                    "outcome": entry.outcome,
                    "detail": entry.detail,
                    "report": entry.report and entry.report.to_json(),
                }
                for entry in self.entries
            ],
        }


def sweep(
    model: PreflightModel,
    *,
    tpus: Sequence[str],
    batch_sizes: Sequence[int],
    steps: Sequence[str] = ("train",),
    options: CompilerOptions | None = None,
) -> Iterator[SweepEntry]:
    """Finds the largest batch size that fits each slice.

    It compiles from the largest on and stops at the first that fits, since smaller ones fit, too.

    Args:
        model: The model to compile.
        tpus: Names of slices, such as `"v5e:2x4"`.
        batch_sizes: Rows of a step, over all replicas.
        steps: Steps that must fit. Defaults to training.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Yields:
        An entry for each slice and batch size, as soon as it is known.

    Raises:
        ValueError: If a slice does not exist, or from the model's own functions.
        PreflightUnavailableError: If no TPU compiler is available, or it lacks a slice.
    """
    specs = {spec.tpu_slice.name: spec for spec in map(TpuSpec.read, tpus)}
    for spec in specs.values():
        ended: SweepEntry | None = None
        for size in sorted(set(batch_sizes), reverse=True):
            entry = _entry(model, spec, size, steps, options, ended)
            if entry.outcome in ("fits", "failed"):
                ended = entry
            yield entry


def _entry(
    model: PreflightModel,
    spec: TpuSpec,
    batch_size: int,
    steps: Sequence[str],
    options: CompilerOptions | None,
    ended: SweepEntry | None,
) -> SweepEntry:
    tpu = spec.tpu_slice.name

    def entry(outcome: Outcome, detail: str, report: PreflightReport | None = None) -> SweepEntry:
        return SweepEntry(
            tpu=tpu, batch_size=batch_size, outcome=outcome, detail=detail, report=report
        )

    replicas = spec.num_replicas(
        model.config.tpu_config.num_cores_per_replica if model.config else None
    )
    if batch_size % replicas:
        return entry("not divisible", f"not divisible by {replicas} replicas")
    if ended is not None and ended.outcome == "fits":
        return entry("skipped", f"not compiled, as {ended.batch_size:,} fits")
    if ended is not None:
        return entry("skipped", f"not compiled, as {ended.batch_size:,} has failed")
    report = preflight(model, tpu=tpu, batch_size=batch_size, steps=steps, options=options)
    if report.ok:
        return entry("fits", _largest_need(report), report)
    problems = [step.problem for step in report.steps if step.problem is not None]
    of_the_size = all(problem.stage in _OF_THE_SIZE for problem in problems)
    if of_the_size and problems[0].stage == "memory":
        return entry("too large", _largest_need(report), report)
    return entry("too large" if of_the_size else "failed", str(problems[0]), report)


def _share_needed(entry: SweepEntry) -> float:
    """Returns the largest step's share of its HBM; infinity if unknown."""
    steps = entry.report.steps if entry.report else ()
    return max(
        ((each.need_bytes or math.inf) / (each.limit_bytes or 1) for each in steps),
        default=math.inf,
    )


def _largest_need(report: PreflightReport) -> str:
    step = max(report.steps, key=lambda step: step.need_bytes or 0)
    if step.need_bytes is None or not step.limit_bytes:
        return step.verdict
    return (
        f"{bytes_text(step.need_bytes)} of {bytes_text(step.limit_bytes)} HBM "
        f"({share_text(step.need_bytes / step.limit_bytes)})"
    )
