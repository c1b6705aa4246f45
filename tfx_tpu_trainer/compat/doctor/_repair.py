"""The mechanical edits of a program, made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from tfx_tpu_trainer.compat.doctor._examine import Examined, look_at
from tfx_tpu_trainer.compat.doctor._findings import Finding
from tfx_tpu_trainer.compat.doctor._text_edits import apply_edits, compatible_edits

# An edit may make room for another one, inside of what it has replaced. Calls are hardly nested as deeply.
_ROUNDS: Final = 20


@dataclasses.dataclass(frozen=True)
class Repaired:
    """A program with its mechanical edits.

    Attributes:
        text: The program.
        made: The findings whose edits were made.
        left: The findings on the new text.
        found: The findings on the text as it was.
        tensorflow: The version of TensorFlow that the program was written for, 1 or 2; `None` where
            its names are in both.
    """

    text: str
    made: tuple[Finding, ...]
    left: tuple[Finding, ...]
    found: tuple[Finding, ...] = ()
    tensorflow: int | None = None


def repair(text: str) -> Repaired:
    r"""Makes the edits that need no judgement; the rest of the program is not changed.

    Examples:
        >>> from tfx_tpu_trainer.compat.doctor import repair
        >>> repaired = repair("from tensorflow.contrib import tpu\n")
        >>> print(repaired.text)
        from tfx_tpu_trainer.estimator import tpu
        <BLANKLINE>

    Args:
        text: The program.

    Returns:
        The program with the edits.

    Raises:
        NotPythonError: If it is not Python 3; the message names the line.
    """
    return repair_with(look_at, text)


def repair_with(look: Callable[[str], Examined], text: str) -> Repaired:
    """Makes the edits of what a function finds."""
    made: list[Finding] = []
    examined = first = look(text)
    for _ in range(_ROUNDS):
        fixable = [each for each in examined.findings if each.fixable]
        if not fixable:
            break
        edits = compatible_edits(edit for each in fixable for edit in each.edits)
        made += [each for each in fixable if edits.issuperset(each.edits)]
        text = apply_edits(text, edits)
        examined = look(text)
    return Repaired(
        text, tuple(made), tuple(examined.findings), tuple(first.findings), first.tensorflow
    )
