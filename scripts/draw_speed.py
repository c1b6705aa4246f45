"""Draws docs/images/speed.svg from the table of docs/evidence/speed.md: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from scripts.svg import svg_document

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "speed.md"
PICTURE = ROOT / "docs" / "images" / "speed.svg"

# What the table calls the one that ours is divided by -> what a reader calls it.
CONTENDERS = {
    "real": "TPUEstimator, TensorFlow 2.15",
    "keras3": "Keras 3 fit",
    "tf_keras": "Keras 2 fit",
}
_ROW = re.compile(
    r"\| (?P<model>[^|]+?) \| ours / (?P<other>\w+), train steps/s [^|]+\| (?P<found>[\d.]+)[^|]*\|"
)

_WIDTH, _LABEL, _BAR = 760, 330, 22
# Legible on a light page and on a dark one, whatever the reader's system prefers; at its best where both agree.
_STYLE = """<style>
text { font: 13px sans-serif; fill: #607d8b; }
.model { font-weight: bold; }
rect { fill: #3f51b5; }
.slower { fill: #ff9800; }
line { stroke: #90a4ae; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) { text { fill: #90a4ae; } rect { fill: #5c6bc0; } .slower { fill: #ff9800; } }
</style>"""


def ratios(page: str) -> dict[str, dict[str, float]]:
    """Returns model -> contender -> training steps a second of ours, divided by the contender's."""
    found: dict[str, dict[str, float]] = {}
    for row in _ROW.finditer(page):
        if row["other"] in CONTENDERS:
            found.setdefault(row["model"], {})[row["other"]] = float(row["found"])
    return found


def picture(measured: dict[str, dict[str, float]]) -> str:
    """Returns the ratios as horizontal bars, with a line where both are equally fast."""
    scale = (_WIDTH - _LABEL - 60) / max(
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
    return svg_document(_described(measured), [_STYLE, *drawn], width=_WIDTH, height=top + 24)


def _described(measured: dict[str, dict[str, float]]) -> str:
    parts: Iterable[str] = (
        f"{model}: {', '.join(f'{value:.2f} times {CONTENDERS[other]}' for other, value in others.items())}"
        for model, others in measured.items()
    )
    return "Training steps a second. " + "; ".join(parts)


def main() -> None:
    PICTURE.write_text(picture(ratios(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
