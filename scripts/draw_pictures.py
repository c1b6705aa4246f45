"""Draws the documentation's pictures: the layers of the import contracts, and the speeds. `make docs`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from importlinter import api

ROOT = Path(__file__).parents[1]
LAYERS_PAGE = ROOT / "docs" / "architecture.md"
SPEED_PAGE = ROOT / "docs" / "evidence" / "speed.md"
BEGIN, END = "<!-- made by `make docs`: begin -->\n", "<!-- made by `make docs`: end -->\n"
LAYERS_PICTURE = ROOT / "docs" / "images" / "layers.svg"
SPEED_PICTURE = ROOT / "docs" / "images" / "speed.svg"

_PACKAGE = "tfx_tpu_trainer."
_LAYERS_WIDTH, _HEIGHT, _GAP = 880, 30, 8
# Legible on light and dark pages.
_LAYERS_STYLE = """<style>
rect { fill: #e8eaf6; stroke: #3f51b5; }
text { font: 13px sans-serif; text-anchor: middle; fill: #1a237e; }
.of { fill: #7986cb; font-weight: bold; }
</style>"""

Contract = Mapping[str, Any]


def contracts() -> Sequence[Contract]:
    """Returns the import contracts of pyproject.toml, as import-linter reads them."""
    return api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]


def rows_of(given: Iterable[Contract]) -> dict[str, list[list[str]]]:
    """Returns the layers from top to bottom; layers side by side share a row."""
    rows: dict[str, list[list[str]]] = {}
    for each in given:
        if each["type"] == "layers":
            for container in each.get("containers") or [""]:
                rows[_short(container)] = [
                    # Names that may import each other share a box.
                    ["all others"]
                    if ":" in layer
                    else [_short(n.strip()) for n in layer.split("|")]
                    for layer in each["layers"]
                ]
    return rows


def forbidden(given: Iterable[Contract]) -> str:
    """Returns a Markdown table of forbidden imports."""
    table = ["| module | may not import |", "|---|---|"]
    for each in given:
        if each["type"] == "forbidden":
            sources = ", ".join(f"`{_short(name)}`" for name in each["source_modules"])
            names = ", ".join(f"`{name}`" for name in each["forbidden_modules"])
            table.append(f"| {sources} | {names} |")
    return "\n".join([*table, ""])


def layers_picture(rows: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Draws the layers as static SVG; a row may import those below it."""
    drawn: list[str] = []
    top = _GAP
    for container, layers in rows.items():
        if container:
            drawn.append(
                f'<text class="of" x="{_LAYERS_WIDTH / 2}" y="{top + 20}">in {container}</text>'
            )
            top += 32
        for layer in layers:
            width = (_LAYERS_WIDTH - _GAP * (len(layer) + 1)) / len(layer)
            for index, name in enumerate(layer):
                left = _GAP + index * (width + _GAP)
                drawn += [
                    f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_HEIGHT}" rx="4"/>',
                    f'<text x="{left + width / 2:.1f}" y="{top + _HEIGHT / 2 + 5:.0f}">{name}</text>',
                ]
            top += _HEIGHT + _GAP
    title = "The layers of the package: each may import those below it"
    return svg_document(title, [_LAYERS_STYLE, *drawn], width=_LAYERS_WIDTH, height=top)


def _short(module: str) -> str:
    return module.removeprefix(_PACKAGE)


def with_block(page: str, block: str) -> str:
    """Replaces the generated block between two marks of a page."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + block + END + rest.split(END)[1]


def layers_page(text: str) -> str:
    """Returns the page with a new picture."""
    image = (
        "![The layers of the package: each row may import those below it](images/layers.svg)\n\n"
    )
    return with_block(text, image + forbidden(contracts()))


# Contender in the table -> its name for readers.
CONTENDERS = {
    "real": "TPUEstimator, TensorFlow 2.15",
    "keras3": "Keras 3 fit",
    "tf_keras": "Keras 2 fit",
}
_ROW = re.compile(
    r"\| (?P<model>[^|]+?) \| ours / (?P<other>\w+), train steps/s [^|]+\| (?P<found>[\d.]+)[^|]*\|"
)

_SPEED_WIDTH, _LABEL, _BAR = 760, 330, 22
# Legible on light and dark pages, whatever the reader's system prefers.
_SPEED_STYLE = """<style>
text { font: 13px sans-serif; fill: #607d8b; }
.model { font-weight: bold; }
rect { fill: #3f51b5; }
.slower { fill: #ff9800; }
line { stroke: #90a4ae; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) { text { fill: #90a4ae; } rect { fill: #5c6bc0; } .slower { fill: #ff9800; } }
</style>"""


def ratios(page: str) -> dict[str, dict[str, float]]:
    """Returns model -> contender -> our training steps per second, divided by the contender's."""
    found: dict[str, dict[str, float]] = {}
    for row in _ROW.finditer(page):
        if row["other"] in CONTENDERS:
            found.setdefault(row["model"], {})[row["other"]] = float(row["found"])
    return found


def speed_picture(measured: dict[str, dict[str, float]]) -> str:
    """Draws the ratios as horizontal bars, with a line at equal speed."""
    scale = (_SPEED_WIDTH - _LABEL - 60) / max(
        value for each in measured.values() for value in each.values()
    )
    drawn: list[str] = [
        '<text x="10" y="20">Training steps a second of tfx_tpu_trainer, divided by those of</text>'
    ]
    top = 34
    for model, others in measured.items():
        top += 18
        drawn.append(f'<text class="model" x="10" y="{top}">{model}</text>')
        top += 8
        for other, value in others.items():
            slower = ' class="slower"' if value < 1 else ""
            drawn += [
                f'<text x="24" y="{top + 15}">{CONTENDERS[other]}</text>',
                f'<rect{slower} x="{_LABEL}" y="{top}" width="{value * scale:.1f}" height="{_BAR - 4}"/>',
                f'<text x="{_LABEL + value * scale + 6:.1f}" y="{top + 14}">{value:.2f} x</text>',
            ]
            top += _BAR
        top += 6
    equal = _LABEL + scale
    drawn.append(f'<line x1="{equal:.1f}" y1="30" x2="{equal:.1f}" y2="{top}"/>')
    drawn.append(f'<text x="{equal - 36:.1f}" y="{top + 16}">equally fast</text>')
    return svg_document(
        _described(measured), [_SPEED_STYLE, *drawn], width=_SPEED_WIDTH, height=top + 24
    )


def _described(measured: dict[str, dict[str, float]]) -> str:
    parts: Iterable[str] = (
        f"{model}: {', '.join(f'{value:.2f} times {CONTENDERS[other]}' for other, value in others.items())}"
        for model, others in measured.items()
    )
    return "Training steps a second. " + "; ".join(parts)


def svg_document(title: str, elements: Iterable[str], *, width: int, height: int) -> str:
    """Returns a picture as SVG, whose title screen readers read."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    return "\n".join([opening, f"<title>{title}</title>", *elements, "</svg>", ""])


def main() -> None:
    LAYERS_PICTURE.write_text(layers_picture(rows_of(contracts())), encoding="utf-8")
    LAYERS_PAGE.write_text(layers_page(LAYERS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    drawn = speed_picture(ratios(SPEED_PAGE.read_text(encoding="utf-8")))
    SPEED_PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
