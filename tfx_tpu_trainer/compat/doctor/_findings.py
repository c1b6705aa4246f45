"""Defines findings, and the edits of a program's text as ranges of UTF-8 bytes."""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True, order=True)
class TextEdit:
    """A replacement of bytes.

    Attributes:
        start: The first byte.
        end: The byte after the last; equal to `start` for an insertion.
        text: The replacement.
    """

    start: int
    end: int
    text: str


def compatible_edits(edits: Iterable[TextEdit]) -> set[TextEdit]:
    """Chooses edits that fit together: of two that overlap, the longer."""
    chosen: list[TextEdit] = []
    for edit in sorted(set(edits), key=lambda edit: (edit.start - edit.end, edit.start, edit.text)):
        if not any(_overlap(edit, other) for other in chosen):
            chosen.append(edit)
    return set(chosen)


def apply_edits(text: str, edits: Iterable[TextEdit]) -> str:
    """Applies each edit once."""
    made = compatible_edits(edits)
    # Insertions at the same place keep their order, however they were found.
    line_end = "\r\n" if "\r\n" in text else "\n"
    source, pieces, at = text.encode(), [], 0
    for edit in sorted(made):
        new = edit.text.replace("\r\n", "\n").replace("\n", line_end)
        pieces += [source[at : edit.start], new.encode()]
        at = edit.end
    return b"".join([*pieces, source[at:]]).decode()


def _overlap(one: TextEdit, other: TextEdit) -> bool:
    return one.start < other.end and other.start < one.end


class Verdict(enum.Enum):
    """What a finding requires."""

    WORKS = "works"
    EDIT = "edit"
    NOTE = "note"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A name or construct that a program uses, and what it needs today.

    Attributes:
        line: Line of the file, from 1.
        column: Column, from 1.
        theme: What it belongs to, such as `"contrib"` or `"queues"`.
        name: What was found, as the API calls it, such as `"tf.contrib.tpu.TPUEstimator"`.
        verdict: Whether it works as it is, needs an edit, or is only good to know.
        says: The finding and its reason, in a sentence or two.
        edit: The edit's text, or how to make it; `None` if there is nothing to edit.
        fixable: Whether `repair` makes the edit.
        also_lines: The lines of further uses with the same message.
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
        """Returns the finding as plain values, without its text edits."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "edits"
        }
        return {**values, "verdict": self.verdict.value, "also_lines": list(self.also_lines)}


def told_once(findings: Iterable[Finding]) -> list[Finding]:
    """Merges findings of the same name and message, and sorts them."""
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
