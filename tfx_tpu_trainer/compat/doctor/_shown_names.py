"""Names as findings write them, and the parts of them that rules speak of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tfx_tpu_trainer.compat.doctor._parts import Use
from tfx_tpu_trainer.compat.doctor._spelling import TENSORFLOW
from tfx_tpu_trainer.compat.doctor.rules.moved_names import is_only_in_v1

_SHOWN: Final = 6


def shown(name: str) -> str:
    """Returns a name as programs write it, with `tf` for tensorflow."""
    first, _, rest = name.partition(".")
    return f"tf.{rest}" if first == TENSORFLOW and rest else name


def prefix_in(written: str, name: str, key: str) -> str:
    """Returns the part of a name as it is written that a rule's key speaks of."""
    surplus = name.count(".") - key.count(".")
    parts = written.split(".")
    return ".".join(parts[: len(parts) - surplus])


def why_switched(old: Sequence[Use]) -> str:
    """Returns why an import becomes one of tf.compat.v1, with the names that ask for it and their lines."""
    lines: dict[str, int] = {}
    for use in sorted(old, key=_line):
        lines.setdefault(shown(old_part(use)), _line(use))
    names = [f"{name} (line {line})" for name, line in lines.items()]
    which = "it uses tf.contrib."
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        verb = "is" if len(names) == 1 else "are"
        which = f"{', '.join(names[:_SHOWN])}{more} {verb} in tf.compat.v1 only."
    return (
        f"A program for TensorFlow 1: {which} With that import, names whose meaning TensorFlow 2 "
        "changed also keep their old one."
    )


def old_part(use: Use) -> str:
    """Returns the shortest part of a name that only TF 1 has: what follows hangs on it."""
    parts = use.name.split(".")
    prefixes = (parts[1:length] for length in range(2, len(parts) + 1))
    old = next((each for each in prefixes if is_only_in_v1(".".join(each))), parts[1:])
    return ".".join([TENSORFLOW, *old])


def to_class(name: str) -> str:
    """Returns a name without what hangs on its class: `ModeKeys` for `ModeKeys.TRAIN`."""
    parts = name.split(".")
    classes = (number for number, part in enumerate(parts) if part[:1].isupper())
    return ".".join(parts[: next(classes, len(parts)) + 1])


def _line(use: Use) -> int:
    return use.place.line
