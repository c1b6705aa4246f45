"""Prose and messages read as an editor leaves them: what spelling checkers do not know, our readers have told us."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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

# The same for errors, log lines and help texts, whose English is the program's own.
ODD_IN_MESSAGES = {
    r"(?<!there )\bis no (?!longer\b)\w+": "is not a ...",
    r"\b(is|are) not there\b": "does not exist, is missing",
    r"\bis there already\b": "already exists",
    r"\banew\b": "again; from scratch",
    r"\bgo(es)? on (from|with)\b": "resume from, continue with",
    r"\bin place of\b": "instead of",
    r"\bmend\b": "fix, repair, correct",
    r"\bas (it|they) stands?\b": "unchanged",
    r"\bgoes without\b": "can't be combined with",
    r"\bbut for\b": "except for",
    r"\btexts\b": "strings",
    r"\bputs? out\b": "return",
    r"\basked for\b": "requested, needed",
    r"\bof (its|their|one's) own\b": "its own ..., separate",
    r", as \d": ", such as ...",
}


def _strings(source: str) -> Iterator[str]:
    """Yields the strings of a module, except for docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


@pytest.mark.parametrize("folder", ["tfx_tpu_trainer", "pipelines", "kubeflow", "benchmarks"])
def test_a_message_has_none_of_the_odd_phrases(folder):
    # One search through a text takes a fraction of the time of one for each phrase.
    any_of_them = re.compile("|".join(ODD_IN_MESSAGES), re.IGNORECASE)
    found = [
        f"{path.relative_to(REPOSITORY)}: {m[0]!r}: write {better!r}"
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for text in _strings(path.read_text("utf-8"))
        if " " in text and any_of_them.search(" ".join(text.split()))
        for odd, better in ODD_IN_MESSAGES.items()
        for m in re.finditer(odd, " ".join(text.split()), re.IGNORECASE)
    ]
    assert found == []


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
