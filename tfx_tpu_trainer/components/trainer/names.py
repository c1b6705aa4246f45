"""The nearest valid name, for error messages that end with a way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, names: Iterable[str]) -> str:
    """Says which name may have been meant."""
    names = sorted(names)
    near = difflib.get_close_matches(name, names, n=1)
    valid = ", ".join(map(repr, names)) or "none"
    return f"did you mean {near[0]!r}? (valid: {valid})" if near else f"valid: {valid}"
