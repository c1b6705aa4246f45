"""Defines findings, the advice on names that they give, and the edits of a program's text as ranges of UTF-8 bytes."""

import bisect
import collections
import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final


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
    chosen: set[TextEdit] = set()
    # In order. They do not overlap, so only the last one that starts before an edit's end can overlap the edit.
    taken: list[tuple[int, int]] = []
    for edit in sorted(set(edits), key=lambda edit: (edit.start - edit.end, edit.start, edit.text)):
        before = bisect.bisect_left(taken, (edit.end,))
        if before == 0 or taken[before - 1][1] <= edit.start:
            chosen.add(edit)
            bisect.insort(taken, (edit.start, edit.end))
    return chosen


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
        verdict: Whether it works unchanged, needs an edit, or is only good to know.
        says: The finding and its reason, in a sentence or two.
        edit: The edit's text, or how to make it; `None` if there is nothing to edit.
        fixable: Whether `repair` makes the edit.
        also_lines: The lines of further uses with the same message.
        cell: The code cell of a notebook, from 1, whose lines are counted; `None` elsewhere.
        edits: The changes of the text that make the edit, if it is mechanical.
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


CONTRIB_THEME: Final = "contrib"
NO_CONTRIB: Final = "TensorFlow 2 has no tf.contrib."
# The message for a name of tf.contrib that this package has.
OURS: Final = (
    "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.compat.contrib has this name with the same arguments and the same "
    "variables."
)


@dataclasses.dataclass(frozen=True)
class Advice:
    """The advice on a name.

    Attributes:
        theme: What the name belongs to.
        verdict: Whether it works, needs an edit, or is only good to know.
        says: The reason, in a sentence or two.
        edit: What to write in its place; `None` for the new name alone.
        becomes: The name, in full, that takes its place with the same arguments; `None` if
            the edit is not mechanical.
        calls_only: Whether only calls get the new name, by a rewriter.
    """

    theme: str
    verdict: Verdict
    says: str
    edit: str | None = None
    becomes: str | None = None
    calls_only: bool = False


def moved(
    old: str, new: str, names: str, *, says: str = "", theme: str = CONTRIB_THEME
) -> dict[str, Advice]:
    """Makes rules for names that another module has, with the same arguments."""
    home = f"tf{new.removeprefix('tensorflow')}"
    says = says or f"{NO_CONTRIB[:-1]}; {home} has this name."
    rules = {}
    for pair in names.split():
        before, _, after = pair.partition(":")
        becomes = f"{new}.{after or before}"
        rules[f"{old}.{before}"] = Advice(theme, Verdict.EDIT, says, becomes=becomes)
    return rules


def by_hand(
    module: str,
    edits: Mapping[str, str | tuple[str, str]],
    *,
    says: str = NO_CONTRIB,
    theme: str = CONTRIB_THEME,
) -> dict[str, Advice]:
    """Makes rules for names to be edited by hand: from the edit, or from a message and the edit."""
    rules = {}
    for name, told in edits.items():
        why, edit = (says, told) if isinstance(told, str) else told
        rules[f"{module}.{name}" if name else module] = Advice(theme, Verdict.EDIT, why, edit)
    return rules


def joined(*tables: Mapping[str, Advice]) -> dict[str, Advice]:
    """Joins tables; a name in two of them would silently get the last one's advice."""
    counts = collections.Counter(name for table in tables for name in table)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"Names with two rules: {', '.join(twice)}.")
    return {name: advice for table in tables for name, advice in table.items()}
