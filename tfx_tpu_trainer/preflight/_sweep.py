"""A sweep: the largest batch that fits each of several slices, what a training takes there, and which to choose."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tfx_tpu_trainer.hardware import CHIPS, TpuSpec, find_slice
from tfx_tpu_trainer.preflight._compiling import CompilerOptions
from tfx_tpu_trainer.preflight._price import (
    START_UP_SECONDS,
    TIE,
    Prices,
    TrainingCost,
    TrainingLength,
    choose,
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

# Of these a smaller batch may be the remedy; anything else is wrong at any size.
_OF_THE_SIZE = frozenset({"memory", "timeout", "crash"})

_CHIP_HOURS = Prices(
    currency="chip hours", chip_hour=dict.fromkeys(CHIPS, 1.0), source="no price file"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepEntry:
    """One batch size on one slice."""

    tpu: str  # the slice, such as `"v5e:2x4"`
    batch_size: int  # rows of a step over all replicas
    # `"fits"`; `"too large"` where it needs more HBM than there is, or where the compiler gave up on it; `"failed"`
    # where it does not compile at any size; `"skipped"` after a larger one that fits or has failed; `"not divisible"`
    # by the replicas.
    outcome: Outcome
    detail: str  # need and limit, or what is wrong
    report: PreflightReport | None = None  # the report, where it was compiled


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow:
    """What a sweep says of one slice."""

    tpu: str  # the slice
    entry: SweepEntry  # of the largest batch that fits, or of the smallest that does not
    cost: TrainingCost | None  # where it fits and the training's length is known
    chosen: bool
    why: str  # why it is chosen, or not

    @property
    def num_chips(self) -> int:
        """Chips of the slice."""
        return find_slice(self.tpu).num_chips


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """All batch sizes on all slices.

    Attributes:
        model: Name of the model.
        steps: Names of the steps that had to fit.
        entries: By slice, largest batch size first.
        length: How long the training is, or `None`: then no slice is chosen.
        prices: What chips cost, or `None`: then chip hours are counted.
        deadline: Seconds that the training may take, or `None`.
        start_up_seconds: How long a slice is paid for before the first step.
    """

    model: str
    steps: tuple[str, ...]
    entries: tuple[SweepEntry, ...]
    length: TrainingLength | None = None
    prices: Prices | None = None
    deadline: float | None = None
    start_up_seconds: float = START_UP_SECONDS

    @property
    def largest(self) -> dict[str, int | None]:
        """Slice -> the largest batch size that fits, or `None` where none of the list does."""
        found: dict[str, int | None] = {}
        for entry in self.entries:
            if entry.outcome == "fits" or entry.tpu not in found:
                found[entry.tpu] = entry.batch_size if entry.outcome == "fits" else None
        return found

    @property
    def ok(self) -> bool:
        """Whether there is a batch size for every slice."""
        return None not in self.largest.values()

    @functools.cached_property
    def costs(self) -> tuple[TrainingCost, ...]:
        """What the training takes on each slice that its batch fits, in the order of the slices."""
        if self.length is None or "train" not in self.steps:
            return ()
        return tuple(
            training_cost(
                entry.report,
                self.length,
                self.prices or _CHIP_HOURS,
                start_up_seconds=self.start_up_seconds,
            )
            for entry in self.entries
            if entry.outcome == "fits" and entry.report is not None
        )

    @property
    def choice(self) -> TrainingCost | None:
        """The cheapest slice that is in time; of several that cost about the same, the one of the fewest chips."""
        return choose(self.costs, self.deadline)

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """A row for each slice."""
        costs = {cost.tpu: cost for cost in self.costs}
        return tuple(
            SweepRow(
                tpu=tpu,
                entry=self._entry_of(tpu),
                cost=costs.get(tpu),
                chosen=self.choice is not None and self.choice.tpu == tpu,
                why=self._why(tpu, costs.get(tpu)),
            )
            for tpu in self.largest
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
        if self.deadline is not None and not cost.meets(self.deadline):
            return f"not within {duration_text(self.deadline)}"
        chosen = self.choice
        assert chosen is not None  # this one is in time
        if cost is not chosen:
            return self._why_not(cost, chosen)
        within = "" if self.deadline is None else f" within {duration_text(self.deadline)}"
        in_time = [
            each for each in self.costs if self.deadline is None or each.meets(self.deadline)
        ]
        least = min(in_time, key=lambda each: each.cost)
        if round(least.cost, 2) == round(chosen.cost, 2):
            return f"the cheapest{within}"
        return f"the fewest chips{within} for about the price of {least.tpu}"

    def _why_not(self, cost: TrainingCost, chosen: TrainingCost) -> str:
        if cost.cost > chosen.cost * (1 + TIE):
            return f"{price_text(cost.cost - chosen.cost, cost.currency)} more than on {chosen.tpu}"
        more = find_slice(cost.tpu).num_chips > find_slice(chosen.tpu).num_chips
        return f"about the price of {chosen.tpu}" + (", with more chips" if more else "")

    def to_json(self) -> dict[str, Any]:
        """Returns the sweep as JSON values, reports included."""
        choice = next((row for row in self.rows if row.chosen), None)
        return {
            "format": "tfx_tpu_trainer.preflight_sweep/1",
            "ok": self.ok,
            "model": self.model,
            "steps": list(self.steps),
            "largest": self.largest,
            "choice": choice and {"tpu": choice.tpu, "why": choice.why},
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

    It compiles from the largest on and stops at the first that fits: smaller ones fit as well.

    Args:
        model: What is compiled.
        tpus: Names of slices, such as `"v5e:2x4"`.
        batch_sizes: Rows of a step, over all replicas.
        steps: Steps that have to fit. Defaults to training.
        options: How the compiler is run. Defaults to `CompilerOptions()`.

    Yields:
        An entry for each slice and batch size, as soon as it is known.

    Raises:
        ValueError: If there is no such slice, or from the model's own functions.
        PreflightUnavailableError: If no TPU compiler is available, or it lacks a slice.
    """
    specs = [TpuSpec.read(tpu) for tpu in tpus]
    for spec in specs:
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


def _largest_need(report: PreflightReport) -> str:
    step = max(report.steps, key=lambda step: step.need_bytes or 0)
    if step.need_bytes is None or not step.limit_bytes:
        return step.verdict
    return (
        f"{bytes_text(step.need_bytes)} of {bytes_text(step.limit_bytes)} HBM "
        f"({share_text(step.need_bytes / step.limit_bytes)})"
    )
