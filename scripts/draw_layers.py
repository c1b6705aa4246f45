"""Draws the layers of the import contracts into docs/architecture.md: `make docs`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from importlinter import api

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made by `make docs`: begin -->\n", "<!-- made by `make docs`: end -->\n"

_PACKAGE = "tfx_tpu_trainer."

Contract = Mapping[str, Any]


def contracts() -> Sequence[Contract]:
    """Returns the import contracts of pyproject.toml, as import-linter reads them."""
    return api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]


def picture(given: Iterable[Contract]) -> str:
    """Returns the layers as a Mermaid diagram, and a table of what some modules may not import.

    Args:
        given: Import contracts. Layers without containers are those of the package; layers in a
            container are drawn inside of it.
    """
    drawing = ["```mermaid", "flowchart TB"]
    table = ["| module | may not import |", "|---|---|"]
    for each in given:
        if each["type"] == "forbidden":
            sources = ", ".join(f"`{_short(name)}`" for name in each["source_modules"])
            forbidden = ", ".join(f"`{name}`" for name in each["forbidden_modules"])
            table.append(f"| {sources} | {forbidden} |")
        elif each.get("containers"):
            for container in each["containers"]:
                name = _short(container)
                drawing.append(f"  subgraph {name}")
                drawing += [f"  {line}" for line in _arrows(each["layers"], f"{name}_")]
                drawing.append("  end")
        else:
            drawing += _arrows(each["layers"])
    return "\n".join([*drawing, "```", "", *table, ""])


def _arrows(layers: Sequence[str], prefix: str = "") -> list[str]:
    """Draws layers from top to bottom; those on one line of a contract stand side by side."""
    rows = [[_short(name.strip()) for name in layer.split("|")] for layer in layers]
    boxes = [f'  {prefix}{name}["{name}"]' for row in rows for name in row if prefix]
    sides = [" & ".join(prefix + name for name in row) for row in rows]
    return boxes + [f"  {above} --> {below}" for above, below in itertools.pairwise(sides)]


def _short(module: str) -> str:
    return module.removeprefix(_PACKAGE)


def with_block(page: str, block: str) -> str:
    """Returns a page with a generated block in place of the one between its two marks.

    Args:
        page: The page as it is.
        block: The new block.
    """
    before, rest = page.split(BEGIN)
    return before + BEGIN + block + END + rest.split(END)[1]


def page(text: str) -> str:
    """Returns the page with today's picture in it.

    Args:
        text: The page as it is.
    """
    return with_block(text, picture(contracts()))


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
