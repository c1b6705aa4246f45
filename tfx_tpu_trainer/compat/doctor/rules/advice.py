"""Defines the advice on a name."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict

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
        becomes: The name, in full, that takes its place with the same arguments; `None` where
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
