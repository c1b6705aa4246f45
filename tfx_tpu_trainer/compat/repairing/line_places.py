"""Repaired text laid out so that each statement stands on the line where it stood."""

from __future__ import annotations

import ast
import difflib
from typing import Final

_IMPORTS: Final = ("import ", "from ")


def keep_lines(original: str, repaired: str) -> str:
    """Lays a repaired program out in the original's lines.

    Tracebacks, breakpoints and warnings then name the lines of the file. An added import joins the
    line before or after it, and a line that went stays as an empty one.
    """
    old, new = original.split("\n"), repaired.split("\n")
    laid: list[str] = []
    opcodes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for _, first, end, new_first, new_end in opcodes:
        for number, line in enumerate(new[new_first:new_end]):
            # Whether it is one line too many, or too many are above it.
            surplus = number >= end - first or len(laid) > first + number
            if surplus and not line.strip():
                continue
            joined = _join(laid[-1], line) if surplus and laid else None
            if joined is None:
                laid.append(line)
            else:
                laid[-1] = joined
        laid += [""] * (end - len(laid))
    laid_out = "\n".join(laid)
    return laid_out if len(laid) == len(old) and _means_the_same(laid_out, repaired) else repaired


def _join(before: str, line: str) -> str | None:
    """Puts a statement on the line of the one before it, if one of them is a plain import."""
    if not any(each.lstrip().startswith(_IMPORTS) for each in (before, line)):
        return None
    statement = line.strip()
    code, mark, comment = before.partition("#")
    if not code.strip() or not statement or _indent(before) != _indent(line):
        return None
    return f"{code.rstrip()}; {statement}" + (f"  {mark}{comment}" if mark else "")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _means_the_same(text: str, other: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError):
        return False
