"""What the doctor says of one place in a program."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

from tfx_tpu_trainer.compat.doctor._text_edits import TextEdit


class Verdict(enum.Enum):
    """What a finding requires."""

    WORKS = "works"
    EDIT = "edit"
    NOTE = "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that a program uses, and what becomes of it.

    Attributes:
        line: Line of the file, from 1.
        column: Column, from 1.
        theme: What it belongs to, such as `"contrib"` or `"queues"`.
        name: What was found, as the API calls it, such as `"tf.contrib.tpu.TPUEstimator"`.
        verdict: Whether it works as it is, needs an edit, or is only good to know.
        says: What it is and why, in a sentence or two.
        edit: The edit's text, or how to make it; `None` where there is nothing to edit.
        fixable: Whether `repair` makes the edit.
        also_lines: The lines of further uses that the same is to be said of.
        cell: The code cell of a notebook, from 1, whose lines are counted; `None` elsewhere.
        edits: The changes of the text that make the edit, where it is mechanical.
    """

    line: int
    column: int
    theme: str
    name: str
    verdict: Verdict
    says: str
    edit: str | None = None
    fixable: bool = False
    also_lines: tuple[int, ...] = ()
    cell: int | None = None
    edits: tuple[TextEdit, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """The finding as plain values, without the changes of the text."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "edits"
        }
        return {**values, "verdict": self.verdict.value, "also_lines": list(self.also_lines)}


def told_once(findings: Iterable[Finding]) -> list[Finding]:
    """Puts findings that say the same of the same name together, and sorts them."""
    told: dict[tuple[object, ...], Finding] = {}
    for finding in sorted(findings, key=_order):
        key: tuple[object, ...] = (
            finding.cell,
            finding.name,
            finding.verdict,
            finding.says,
            finding.edit,
        )
        if finding.fixable:
            key += (finding.line, finding.column)
        first = told.setdefault(key, finding)
        if first is not finding and finding.line not in (first.line, *first.also_lines):
            lines = (*first.also_lines, finding.line)
            told[key] = dataclasses.replace(first, also_lines=lines)
    return list(told.values())


def _order(finding: Finding) -> tuple[int, int, int, str]:
    return (finding.cell or 0, finding.line, finding.column, finding.name)
