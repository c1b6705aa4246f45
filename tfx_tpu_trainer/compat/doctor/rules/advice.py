"""What a rule says of a name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict

# What is said of a name of tf.contrib that this package has.
OURS: Final = (
    "TensorFlow 2 has no tf.contrib; tfx_tpu_trainer.compat.contrib has this name with the same arguments and the same "
    "variables."
)


@dataclasses.dataclass(frozen=True)
class Advice:
    """What becomes of a name.

    Attributes:
        theme: What the name belongs to.
        verdict: Whether it works, needs an edit, or is only good to know.
        says: Why, in a sentence or two.
        edit: What to write in its place; `None` for the new name alone.
        becomes: The name, in full, that takes its place with the same arguments; `None` where
            the edit is not mechanical.
        calls_only: Whether the new name stands for calls only, which a rewriter looks at.
    """

    theme: str
    verdict: Verdict
    says: str
    edit: str | None = None
    becomes: str | None = None
    calls_only: bool = False


def moved(theme: str, says: str, old: str, new: str, names: str) -> dict[str, Advice]:
    """Makes rules for names of one module that another has, with the same arguments."""
    rules = {}
    for pair in names.split():
        before, _, after = pair.partition(":")
        becomes = f"{new}.{after or before}"
        rules[f"{old}.{before}"] = Advice(theme, Verdict.EDIT, says, becomes=becomes)
    return rules


def by_hand(theme: str, module: str, edits: Mapping[str, tuple[str, str]]) -> dict[str, Advice]:
    """Makes rules for names whose edit is not mechanical."""
    return {
        f"{module}.{name}" if name else module: Advice(theme, Verdict.EDIT, says, edit)
        for name, (says, edit) in edits.items()
    }
