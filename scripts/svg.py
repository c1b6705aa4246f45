"""The frame of the pictures that scripts draw for the documentation."""

from __future__ import annotations

from collections.abc import Iterable


def svg_document(title: str, elements: Iterable[str], *, width: int, height: int) -> str:
    """Returns a picture as SVG, which a screen reader reads by its title."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    return "\n".join([opening, f"<title>{title}</title>", *elements, "</svg>", ""])
