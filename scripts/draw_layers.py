"""Draws the layers of the import contracts for docs/architecture.md: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from importlinter import api

from scripts.svg import svg_document

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- made by `make docs`: begin -->\n", "<!-- made by `make docs`: end -->\n"

PICTURE = ROOT / "docs" / "images" / "layers.svg"

_PACKAGE = "tfx_tpu_trainer."
_WIDTH, _HEIGHT, _GAP = 880, 30, 8
# Legible on a light page and on a dark one.
_STYLE = """<style>
rect { fill: #e8eaf6; stroke: #3f51b5; }
text { font: 13px sans-serif; text-anchor: middle; fill: #1a237e; }
.of { fill: #7986cb; font-weight: bold; }
</style>"""

Contract = Mapping[str, Any]


def contracts() -> Sequence[Contract]:
    """Returns the import contracts of pyproject.toml, as import-linter reads them."""
    return api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]


def rows_of(given: Iterable[Contract]) -> dict[str, list[list[str]]]:
    """Returns the layers from top to bottom, those side by side in one row, by what holds them."""
    rows: dict[str, list[list[str]]] = {}
    for each in given:
        if each["type"] == "layers":
            for container in each.get("containers") or [""]:
                rows[_short(container)] = [
                    # Names that may import each other are drawn as one.
                    ["all others"]
                    if ":" in layer
                    else [_short(n.strip()) for n in layer.split("|")]
                    for layer in each["layers"]
                ]
    return rows


def forbidden(given: Iterable[Contract]) -> str:
    """Returns a table of what some modules may not import, in Markdown."""
    table = ["| module | may not import |", "|---|---|"]
    for each in given:
        if each["type"] == "forbidden":
            sources = ", ".join(f"`{_short(name)}`" for name in each["source_modules"])
            names = ", ".join(f"`{name}`" for name in each["forbidden_modules"])
            table.append(f"| {sources} | {names} |")
    return "\n".join([*table, ""])


def picture(rows: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Returns the layers as SVG: a row may import those below it. No script is needed to show it."""
    drawn: list[str] = []
    top = _GAP
    for container, layers in rows.items():
        if container:
            drawn.append(f'<text class="of" x="{_WIDTH / 2}" y="{top + 20}">in {container}</text>')
            top += 32
        for layer in layers:
            width = (_WIDTH - _GAP * (len(layer) + 1)) / len(layer)
            for index, name in enumerate(layer):
                left = _GAP + index * (width + _GAP)
                drawn += [
                    f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}" rx="4"/>',
                    f'<text x="{left + width / 2:.1f}" y="{top + _HEIGHT / 2 + 5:.0f}">{name}</text>',
                ]
            top += _HEIGHT + _GAP
    title = "The layers of the package: each may import those below it"
    return svg_document(title, [_STYLE, *drawn], width=_WIDTH, height=top)


def _short(module: str) -> str:
    return module.removeprefix(_PACKAGE)


def with_block(page: str, block: str) -> str:
    """Returns a page with a generated block instead of the one between its two marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + block + END + rest.split(END)[1]


def page(text: str) -> str:
    """Returns the page with today's picture in it."""
    image = (
        "![The layers of the package: each row may import those below it](images/layers.svg)\n\n"
    )
    return with_block(text, image + forbidden(contracts()))


def main() -> None:
    PICTURE.write_text(picture(rows_of(contracts())), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
