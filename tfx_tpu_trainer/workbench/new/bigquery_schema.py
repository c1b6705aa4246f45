"""The types of a BigQuery-like schema file, which win over those that the data seems to have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tfx_tpu_trainer.workbench.new.column_kinds import Kind
from tfx_tpu_trainer.workbench.new.errors import ScaffoldError

_NUMBERS = ("INTEGER", "INT64", "FLOAT", "FLOAT64", "NUMERIC", "BIGNUMERIC")
_WORDS = ("STRING", "BOOLEAN", "BOOL", "TIME")
_DATES = ("DATE", "DATETIME", "TIMESTAMP")


def read_schema(path: Path) -> Mapping[str, Kind]:
    """Reads a schema file, as `bq show --schema` writes it: a list of `{"name", "type", "mode"}`."""
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
