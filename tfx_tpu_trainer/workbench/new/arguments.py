"""Checks a user's arguments for a new project: its folder, the kinds of columns, a BigQuery schema."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

from tfx_tpu_trainer._support.file_systems import check_is_utf8

_LONGEST_NAME = 64
Kind = Literal["numbers", "words", "dates", "day-first", "month-first", "left-out"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_NUMBERS = ("INTEGER", "INT64", "FLOAT", "FLOAT64", "NUMERIC", "BIGNUMERIC")
_WORDS = ("STRING", "BOOLEAN", "BOOL", "TIME")
_DATES = ("DATE", "DATETIME", "TIMESTAMP")


class ScaffoldError(ValueError):
    """Data, a label or a folder that can't be used; the message is one line with the fix."""


def check_folder(folder: Path) -> None:
    """Rejects a folder that exists already, before anything is read."""
    check_name(folder)
    try:
        if folder.is_symlink() or folder.exists():
            raise ScaffoldError(f"{folder} already exists: remove it, or give a new folder")
        parents = folder.absolute().parents
        there = next(parent for parent in parents if parent.exists())
    except OSError as error:
        raise ScaffoldError(
            f"{str(folder)[:100]!r} can't be a folder ({error.strerror}): give another path"
        ) from None
    if not there.is_dir():
        raise ScaffoldError(f"{there} is a file, so {folder} can't exist: give a folder elsewhere")


def check_name(path: Path) -> None:
    """Rejects a path that is not UTF-8, which TensorFlow can't take."""
    try:
        check_is_utf8("path", path)
    except ValueError as error:
        raise ScaffoldError(str(error)) from None


def project_name(folder: Path) -> str:
    """Returns the name of a folder's pipeline: small letters, digits, `_` and `-`."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-_")
    name = name if name[:1].isalpha() else f"project-{name}"
    return name[:_LONGEST_NAME].rstrip("-_")


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


def read_schema(path: Path) -> Mapping[str, Kind]:
    """Reads a schema file in the form of `bq show --schema`: a list of `{"name", "type", "mode"}`."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScaffoldError(
            f"the schema {path} can't be read ({error.strerror}): give a JSON file, as written by "
            "`bq show --schema`"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ScaffoldError(
            f"the schema {path} is not valid JSON ({reason}): give the output of `bq show --schema`"
        ) from None
    if not isinstance(fields, list) or not all(
        isinstance(field, dict) and isinstance(field.get("name"), str) for field in fields
    ):
        raise ScaffoldError(
            f"the schema {path} is not a list of columns: give "
            '[{"name": "age", "type": "INTEGER"}, ...]'
        )
    return {field["name"]: _kind(field, path) for field in fields}


def _kind(field: Mapping[str, object], path: Path) -> Kind:
    kind, mode = (str(field.get(key, "")).upper() for key in ("type", "mode"))
    if mode == "REPEATED" or kind not in (*_NUMBERS, *_WORDS, *_DATES):
        raise ScaffoldError(
            f"the schema {path}: column {field['name']!r} is "
            f"{mode if mode == 'REPEATED' else kind or 'untyped'}; remove it from the schema and "
            f"the data, or give one of {', '.join((*_NUMBERS, *_WORDS, *_DATES))}"
        )
    return "numbers" if kind in _NUMBERS else "words" if kind in _WORDS else "dates"
