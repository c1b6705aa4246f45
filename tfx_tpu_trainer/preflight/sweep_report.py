"""The largest batch that fits a slice, of a list."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from tfx_tpu_trainer.preflight.report import PreflightReport

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
