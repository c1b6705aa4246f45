"""The mechanical edits of a program, made."""

from __future__ import annotations

import dataclasses
from typing import Final

from tfx_tpu_trainer.doctor.examine import examine
from tfx_tpu_trainer.doctor.findings import Finding
from tfx_tpu_trainer.doctor.text_edits import apply_edits

# An edit may make room for another one, inside of what it has replaced.
_ROUNDS: Final = 5


@dataclasses.dataclass(frozen=True)
class Repaired:
    """A program with its mechanical edits.

    Attributes:
        text: The program.
        made: The findings whose edits were made.
        left: The findings on the new text.
    """

    text: str
    made: tuple[Finding, ...]
    left: tuple[Finding, ...]


def repair(text: str) -> Repaired:
    """Makes the edits that need no judgement; what they don't touch stays as it was written.

    Args:
        text: The program.

    Returns:
        The program with the edits.

    Raises:
        NotPythonError: If it is no Python 3; the message names the line.
    """
    made: list[Finding] = []
    left = examine(text)
    for _ in range(_ROUNDS):
        fixable = [each for each in left if each.fixable]
        if not fixable:
            break
        made += fixable
        text = apply_edits(text, (edit for each in fixable for edit in each.edits))
        left = examine(text)
    return Repaired(text, tuple(made), tuple(left))
