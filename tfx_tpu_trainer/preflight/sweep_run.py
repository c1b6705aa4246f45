"""Finds the largest batch that fits a slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfx_tpu_trainer.hardware import TpuSpec
from tfx_tpu_trainer.preflight.compiler import CompilerOptions
from tfx_tpu_trainer.preflight.report import PreflightReport
from tfx_tpu_trainer.preflight.run import PreflightModel, preflight
from tfx_tpu_trainer.preflight.sweep_report import Outcome, SweepEntry
from tfx_tpu_trainer.preflight.units import bytes_text

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
        PreflightUnavailableError: If there is no TPU compiler here, or none for a slice.
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
