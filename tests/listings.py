"""The Python listings of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"


def listings_of(page: Path) -> list[str]:
    """The Python listings of a page, in its order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def run_listings(page: Path) -> dict[str, Any]:
    """Runs the listings of a page, one after the other; gives the names that they leave."""
    names: dict[str, Any] = {}
    for listing in listings_of(page):
        exec(compile(listing, str(page), "exec"), names)
    return names
