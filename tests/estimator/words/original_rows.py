"""Every raise, assert, shape check and log line of the original's source: one row each.

A row's id is `module:function:kind:number`; numbers count within the function, so that an edit
elsewhere moves none. The words are the beginning of the literal message.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence

# Helpers of the original's own tests, and its generated lists of names.
LEFT_OUT = ("testing_utils", "_api/", "estimator/api/")
PATTERN_WORDS = 6
_SCOPES = (ast.FunctionDef, ast.ClassDef)


@dataclasses.dataclass(frozen=True)
class Row:
    """One statement that a program can hear of.

    Attributes:
        id: Stable name.
        words: The first words of its message, as far as they are literal.
        path: Its module's file.
        lines: Where the statement stands; of a bare `raise`, what its `try` holds.
    """

    id: str
    words: str
    path: str
    lines: range


def rows_of(package: pathlib.Path) -> list[Row]:
    """Returns the rows of all modules of the installed package `tensorflow_estimator`."""
    rows: list[Row] = []
    root = package / "python" / "estimator"
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in f"estimator/{name}" for part in LEFT_OUT):
            continue
        numbers: Counter[str] = Counter()
        tree = ast.parse(path.read_text("utf-8"))
        tried = {
            node: part.body
            for part in ast.walk(tree)
            if isinstance(part, ast.Try)
            for handler in part.handlers
            for node in handler.body
            if isinstance(node, ast.Raise) and node.exc is None
        }
        for node, function in _statements(tree, ()):
            key = f"{name[:-3].replace('/', '.')}:{function}:{_kind(node)}"
            numbers[key] += 1
            lines = _lines(tried.get(node, [node]))
            rows.append(Row(f"{key}:{numbers[key]}", _words(node), str(path), lines))
    return rows


def _statements(parent: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.iter_child_nodes(parent):
        inner = (*scope, node.name) if isinstance(node, _SCOPES) else scope
        if isinstance(node, ast.stmt) and not isinstance(node, _SCOPES) and _kind(node):
            yield node, ".".join(scope)
        yield from _statements(node, inner)


def _kind(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Raise):
        return "raise"
    if isinstance(node, ast.Assert):
        return "assert"
    value = getattr(node, "value", None)
    if not isinstance(value, ast.Call):
        return None
    called = ast.unparse(value.func)
    if "logging." in called:
        return "log"
    return "check" if "debugging." in called else None


def _lines(nodes: Sequence[ast.stmt]) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or nodes[-1].lineno) + 1)


def _words(node: ast.stmt) -> str:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
            return " ".join(part.value.split()[:PATTERN_WORDS])
    return ""
