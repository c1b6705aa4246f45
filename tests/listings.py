"""The listings of a page of the documentation, and what it says that they print."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
OLD_PROGRAM = DOCS / "start" / "old-program.md"


def listings_of(page: Path) -> list[str]:
    """The Python listings of a page, in its order."""
    return blocks_of(page, "python")


def blocks_of(page: Path, language: str) -> list[str]:
    """The blocks of one language, such as `console`, in the page's order."""
    return [text for found, text in all_blocks_of(page) if found == language]


def all_blocks_of(page: Path) -> list[tuple[str, str]]:
    """Language and text of each fenced block of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run_listings(page: Path) -> dict[str, Any]:
    """Runs the listings of a page, one after the other; gives the names that they leave."""
    names: dict[str, Any] = {}
    for listing in listings_of(page):
        exec(compile(listing, str(page), "exec"), names)
    return names
