"""What a user says that columns hold, by `--type COLUMN=KIND`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from tfx_tpu_trainer.workbench.new.errors import ScaffoldError

Kind = Literal["numbers", "words", "dates", "day-first", "month-first", "left-out"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def parse_kinds(settings: Iterable[str]) -> Mapping[str, Kind]:
    """Reads `COLUMN=KIND` settings."""
    kinds: dict[str, Kind] = {}
    for setting in settings:
        column, equals, given = setting.rpartition("=")
        kind = next((each for each in KINDS if each == given), None)
        if not equals or kind is None:
            raise ScaffoldError(
                f"--type {setting!r} is not valid; give COLUMN=KIND with one of {', '.join(KINDS)}"
            )
        if column in kinds:
            raise ScaffoldError(f"--type names the column {column!r} twice; give it once")
        kinds[column] = kind
    return kinds
