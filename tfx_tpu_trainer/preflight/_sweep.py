"""The largest batch that fits a slice, of a list: found, and reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tfx_tpu_trainer.hardware import TpuSpec
from tfx_tpu_trainer.preflight._compiling import CompilerOptions
from tfx_tpu_trainer.preflight._report import PreflightReport, bytes_text
from tfx_tpu_trainer.preflight._run import PreflightModel, preflight

Outcome = Literal["fits", "too large", "failed", "skipped", "not divisible"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepEntry:
    """One batch size on one slice.

    Attributes:
        tpu: The slice, such as `"v5e:2x4"`.
        batch_size: Rows of a step over all replicas.
        outcome: `"fits"`; `"too large"` where it needs more HBM than there is, or where the compiler
            gave up on it; `"failed"` where it does not compile at any size; `"skipped"` after a
            larger one that fits or has failed; `"not divisible"` by the replicas.
        detail: Need and limit, or what is wrong.
        report: The report, where it was compiled.
    """

    tpu: str
    batch_size: int
    outcome: Outcome
    detail: str
    report: PreflightReport | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """All batch sizes on all slices.

    Attributes:
        model: Name of the model.
        steps: Names of the steps that had to fit.
        entries: By slice, largest batch size first.
    """

    model: str
    steps: tuple[str, ...]
    entries: tuple[SweepEntry, ...]

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

    def to_json(self) -> dict[str, Any]:
        """Returns the sweep as JSON values, reports included."""
        return {
            "format": "tfx_tpu_trainer.preflight_sweep/1",
            "ok": self.ok,
            "model": self.model,
            "steps": list(self.steps),
            "largest": self.largest,
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


# Of these a smaller batch may be the remedy; anything else is wrong at any size.
_OF_THE_SIZE = frozenset({"memory", "timeout", "crash"})


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
        model: The model.
        tpus: The slices.
        batch_sizes: The batch sizes, over all replicas.
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
        f"({step.need_bytes / step.limit_bytes:.0%})"
    )
