"""What the doctor found in one file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tfx_tpu_trainer.doctor import Finding, Verdict


@dataclasses.dataclass(frozen=True)
class Examined:
    """One file's findings.

    Attributes:
        path: The file.
        findings: What was found; with --fix what is left.
        made: The findings whose edits were made.
        diff: The mechanical edits as a unified diff; "" where they were not asked for.
    """

    path: Path
    findings: tuple[Finding, ...]
    made: tuple[Finding, ...] = ()
    diff: str = ""

    def count(self, verdict: Verdict) -> int:
        """How many findings say so."""
        return sum(each.verdict is verdict for each in self.findings)
