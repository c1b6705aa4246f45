"""docs/behaviours.md lists every behaviour of the original, and each listed one has its test."""

from __future__ import annotations

import ast
import dataclasses
import pathlib
import re
from collections.abc import Iterator

import pytest

TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parent / "docs" / "behaviours.md"

# The last number of each group, in the order of the page's sections.
_ENDS = (30, 45, 69, 90, 110, 143, 156, 183, 193, 219, 239, 253, 264, 271, 282, 291, 309)
LAST = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWX", (*_ENDS, 351, 379, 388, 400, 417, 438, 445)))
# What only a TPU could show; some of it has a test of what we do without one.
NEEDS_A_TPU = frozenset({89, 106, 181, 182, 218, 236, 239, 251, 387, 388, 400})
# What is built later.
LATER: frozenset[int] = frozenset()
MOST_WITHOUT_A_TEST = 0.05
MARKER = "pytest.mark.behaviour"
STATES = ("same", "lift", "n/a", "not yet")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the page.

    Attributes:
        group: The letter of its section.
        numbers: The behaviours that it speaks of.
        says: What we do, as it stands there.
        note: The row's last cell.
    """

    group: str
    numbers: tuple[int, ...]
    says: str
    note: str

    @property
    def state(self) -> str:
        """One of `STATES`: what `says` begins with."""
        return next((state for state in STATES if self.says.startswith(state)), "")


def _sections(page: str) -> dict[str, list[list[str]]]:
    """Heading -> cells of the table rows below it."""
    sections: dict[str, list[list[str]]] = {}
    heading = ""
    for line in page.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
            sections[heading] = []
        elif heading and re.match(r"\| \d", line):
            sections[heading].append([cell.strip() for cell in line.strip("| ").split(" | ")])
    return sections


def _numbers(cell: str) -> tuple[int, ...]:
    """Reads `1 - 3, 5`."""
    numbers: list[int] = []
    for part in cell.split(","):
        first, *last = (int(number) for number in part.split(" - "))
        numbers += range(first, (last or [first])[0] + 1)
    return tuple(numbers)


def rows_of(page: str) -> list[Row]:
    """Reads the rows of the groups' sections, `A. Constructor` to `X. Input receivers`."""
    return [
        Row(heading[0], _numbers(cells[0]), cells[1], "".join(cells[2:]))
        for heading, rows in _sections(page).items()
        if re.match(r"[A-X]\. ", heading)
        for cells in rows
    ]


def without_test(page: str) -> dict[int, str]:
    """Reads the section `No test, and why`: number -> reason."""
    rows = _sections(page).get("No test, and why", [])
    return {number: cells[1] for cells in rows for number in _numbers(cells[0])}


def numbers_of_tests(folder: pathlib.Path) -> dict[int, list[str]]:
    """Number -> names of the tests that show it: `@pytest.mark.behaviour(7, 8)` is on one of both."""
    tests: dict[int, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text("utf-8")
        # Parsing is what takes time.
        for node in ast.walk(ast.parse(text)) if MARKER in text else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in _marked(node):
                    tests.setdefault(number, []).append(node.name)
    return tests


def _marked(test: ast.FunctionDef) -> Iterator[int]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARKER:
            for given in decorator.args:
                if isinstance(given, ast.Constant):
                    yield given.value
                else:
                    # `*range(1, 12)`, both of them written as numbers.
                    yield from range(*(bound.value for bound in given.value.args))


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text("utf-8")


@pytest.fixture(scope="module")
def tests() -> dict[int, list[str]]:
    return numbers_of_tests(TESTS)


def test_every_number_stands_once_in_its_section(page):
    found: dict[str, list[int]] = {group: [] for group in LAST}
    for row in rows_of(page):
        found[row.group] += row.numbers
    first = 1
    for group, last in LAST.items():
        assert found[group] == list(range(first, last + 1)), f"section {group}"
        first = last + 1


def test_every_row_says_what_we_do_and_what_is_not_the_same_says_why(page):
    for row in rows_of(page):
        assert row.state, f"{row.numbers}: {row.says!r} begins with none of {STATES}"
        assert row.says == "same" or row.note, f"{row.numbers}: {row.says!r} has no note"
        assert row.state != "not yet" or set(row.numbers) <= LATER, f"{row.numbers} is not there"


def test_what_is_listed_has_a_test_of_its_number_or_a_reason(page, tests):
    excused = without_test(page)
    missing = [
        number
        for row in rows_of(page)
        if row.state in ("same", "lift")
        for number in row.numbers
        if number not in tests and number not in excused
    ]
    assert missing == []


def test_few_behaviours_are_without_a_test(page, tests):
    excused = without_test(page)
    assert all(excused.values())
    assert sorted(set(excused) & set(tests)) == [], "these have a test: take them off the list"
    checkable = set(range(1, max(LAST.values()) + 1)) - NEEDS_A_TPU - LATER
    untested = sorted(checkable - set(tests))
    assert len(untested) <= MOST_WITHOUT_A_TEST * len(checkable), untested


def test_markers_speak_of_behaviours_that_there_are(tests):
    assert not set(tests) - set(range(1, max(LAST.values()) + 1))


def test_a_row_without_a_test_is_seen():
    # This module reads text; here is what it makes of some.
    text = """
## A. First
| # | We | |
|---|---|---|
| 1 - 3, 5 | same | |
| 4 | same, but | not quite |
## No test, and why
| # | Why |
|---|---|
| 2 | too slow |
"""
    first, second = rows_of(text)
    assert (first.numbers, first.state, second.state) == ((1, 2, 3, 5), "same", "same")
    assert second.note == "not quite"
    assert without_test(text) == {2: "too slow"}


def test_numbers_are_read_from_markers(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "@pytest.mark.behaviour(7, 12)\ndef test_one(x):\n    1\n"
        "class TestIt:\n    @pytest.mark.behaviour(1, *range(20, 23))\n    def test_in(self): 1\n"
        "@pytest.mark.behaviour(9)\ndef helper(): 1\n"
        "@pytest.mark.sweep(10)\ndef test_other(): 1\n"
    )
    (tmp_path / "other.py").write_text("@pytest.mark.behaviour(8)\ndef test_not_collected(): 1\n")
    assert sorted(numbers_of_tests(tmp_path)) == [1, 7, 12, 20, 21, 22]
