"""The examples of docstrings: `make test` runs each, and `make docs` says how many there are."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tfx_tpu_trainer"
PROMPT = ">>> "


def examples(package: Path = PACKAGE) -> dict[str, str]:
    """Returns each docstring with an example by its place, such as `estimator/_estimator.py:Estimator`."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text("utf-8")
        if PROMPT in source:
            for name, text in _docstrings(ast.parse(source)):
                if PROMPT in text:
                    found[f"{path.relative_to(package)}:{name}"] = text
    return found


def _docstrings(tree: ast.AST, within: str = "") -> Iterator[tuple[str, str]]:
    """Yields name and docstring of each class, function and assigned name, such as `Estimator.train`."""
    body = getattr(tree, "body", [])
    for node, following in zip(body, [*body[1:], None]):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield f"{within}{node.name}", ast.get_docstring(node) or ""
            yield from _docstrings(node, f"{within}{node.name}.")
        elif isinstance(node, ast.Assign) and isinstance(following, ast.Expr):
            # What has no docstring of its own, as a class of TensorFlow's, has a string below its name.
            text = getattr(following.value, "value", None)
            if isinstance(text, str):
                yield ast.unparse(node.targets[0]), inspect.cleandoc(text)
