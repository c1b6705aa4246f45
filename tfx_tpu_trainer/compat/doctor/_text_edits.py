"""Changes of a text, as ranges of its UTF-8 bytes: what they don't touch stays as it was written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, order=True)
class TextEdit:
    """Bytes to be replaced.

    Attributes:
        start: The first byte.
        end: The byte after the last; equal to `start` for an insertion.
        text: What stands there afterwards.
    """

    start: int
    end: int
    text: str


def compatible_edits(edits: Iterable[TextEdit]) -> set[TextEdit]:
    """Chooses the edits that can be made together: of two that overlap, the longer."""
    chosen: list[TextEdit] = []
    for edit in sorted(set(edits), key=lambda edit: (edit.start - edit.end, edit.start, edit.text)):
        if not any(_overlap(edit, other) for other in chosen):
            chosen.append(edit)
    return set(chosen)


def apply_edits(text: str, edits: Iterable[TextEdit]) -> str:
    """Makes edits, each once."""
    made = compatible_edits(edits)
    # Insertions at one place keep their order, whatever order they were found in.
    line_end = "\r\n" if "\r\n" in text else "\n"
    source, pieces, at = text.encode(), [], 0
    for edit in sorted(made):
        new = edit.text.replace("\r\n", "\n").replace("\n", line_end)
        pieces += [source[at : edit.start], new.encode()]
        at = edit.end
    return b"".join([*pieces, source[at:]]).decode()


def _overlap(one: TextEdit, other: TextEdit) -> bool:
    return one.start < other.end and other.start < one.end
