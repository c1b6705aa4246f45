"""The programs of the corpus, and what each line of them says is to be found there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
PROGRAMS = sorted(path.stem for path in CORPUS.glob("*.py"))


@dataclasses.dataclass(frozen=True, order=True)
class Expected:
    """A mark in a program, `#: fix NAME -> EDIT` at the end of its line.

    `fix` is an edit that --fix makes, `edit` one by hand; `EDIT` is a part of the edit's text.
    """

    line: int
    name: str
    verdict: str
    edit: str


def text_of(program: str) -> str:
    return (CORPUS / f"{program}.py").read_text(encoding="utf-8")


def expected(program: str) -> list[Expected]:
    found = []
    for number, line in enumerate(text_of(program).splitlines(), 1):
        for mark in line.split(" #: ")[1:]:
            match = re.fullmatch(r"(works|note|edit|fix) (.+?)(?: -> (.+?))? *", mark)
            assert match, f"{program}.py:{number}: {mark!r} is not a mark"
            found.append(Expected(number, match[2], match[1], match[3] or ""))
    return sorted(found)
