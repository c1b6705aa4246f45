"""Prose reads as an editor leaves it: what spelling checkers do not know, our readers have told us."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [
    *(
        REPOSITORY / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    ),
    *DOCS.rglob("*.md"),
    REPOSITORY / "kubeflow" / "README.md",
]

# What readers stumbled over -> what they would have expected.
ODD = {
    r"\bto and fro\b": "interchangeable",
    r"rows that are not there": "rows that do not exist; of a last batch: a short last batch",
    r"no TPU was (here|there)": "not tested on TPU hardware",
    r"need not know of": "needs no ... logic",
    r"nobody can tell but by the clock": "with identical results",
    r"can only (a|the) \w+ tell\b|only \w+ can tell\b": "can only be known by ...",
    r"what is no \w+": "an object that isn't a ...",
    r"a number of the program": "is set in your program",
    r"\bfor ever\b": "forever",
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_page_has_none_of_the_odd_phrases(path):
    text = " ".join(path.read_text("utf-8").split())
    found = {
        m[0]: better for odd, better in ODD.items() for m in re.finditer(odd, text, re.IGNORECASE)
    }
    assert found == {}


@pytest.mark.parametrize("folder", ["start", "how-to", "explanation", "reference", "evidence"])
def test_lines_of_the_sections_pages_wrap_at_100_columns(folder):
    long = []
    for path in sorted((DOCS / folder).rglob("*.md")):
        # Listings are as they run; a row of a table is one line; links can't be broken.
        text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        long += [
            f"{path.name}: {line}"
            for line in text.splitlines()
            if len(line) > 100 and not line.startswith(("|", "!["))
        ]
    assert long == []
