"""JSON values as users give them: what is wrong with one, and how a message quotes it."""

from __future__ import annotations

import json
import math
from typing import Any

# Python's own reader and writer end in a RecursionError some hundreds of levels further down.
_DEEPEST = 100
# No more than a float's, which is what other readers of JSON make of a number.
_MOST_BITS = 1023
_LONGEST = 200


def shown(value: Any) -> str:
    """Returns a value as a message quotes it: on one line, and not for pages."""
    try:
        text = " ".join(repr(value).split())
    except (RecursionError, ValueError):
        return f"<{type(value).__name__}, too large to show>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def json_problem(value: Any, *, depth: int = 0) -> str | None:
    """Says why a value is none of JSON."""
    if depth > _DEEPEST:
        return f"is nested more than {_DEEPEST} deep"
    if value is None or isinstance(value, (bool, str)):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= _MOST_BITS else "is not a JSON value"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a JSON value"
    if not isinstance(value, (dict, list, tuple)):
        return "is not a JSON value"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"has the key {shown(key)}, but JSON allows only strings as keys"
    parts = value.values() if isinstance(value, dict) else value
    problems = (json_problem(part, depth=depth + 1) for part in parts)
    return next(filter(None, problems), None)


def read_json(text: str, wanted: str) -> Any:
    """Reads JSON.

    Args:
        text: The text.
        wanted: What it is to hold, for the error: "an object".

    Returns:
        The value.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"give a JSON {wanted}; it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"give a JSON {wanted}; {error}") from None
