"""The Python listings of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def run_listings(page: Path) -> dict[str, Any]:
    """Runs the listings of a page, one after the other; gives the names that they leave."""
    names: dict[str, Any] = {}
    for listing in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(listing, str(page), "exec"), names)
    return names
