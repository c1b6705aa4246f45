"""The table of tests that cannot run on the newest line names tests that are there, and few."""

import importlib.metadata
import re
from pathlib import Path

from tests import excused
from tests.conftest import REPOSITORY


def _tests(path: Path) -> list[str]:
    return re.findall(r"^ *def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def _named(row: str) -> list[str]:
    """Returns the tests of a row."""
    file, _, name = row.partition("::")
    tests = _tests(REPOSITORY / file)
    return [test for test in tests if not name or test == name]


def test_each_row_names_tests_that_are_there():
    for row in excused.rows():
        assert _named(row), row


def test_they_are_at_most_two_in_a_hundred():
    every = sum(len(_tests(path)) for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert every > 1000
    assert sum(len(_named(row)) for row in excused.rows()) <= 0.02 * every


def test_a_row_excuses_a_test_its_parameters_and_a_whole_file():
    rows = {"tests/a.py::test_x": "why", "tests/b.py": "because"}
    assert excused.reason("tests/a.py::test_x", rows) == "not on TFX 1.21: why"
    assert excused.reason("tests/a.py::test_x[1-2]", rows) == "not on TFX 1.21: why"
    assert excused.reason("tests/a.py::test_xy", rows) is None
    assert excused.reason("tests/b.py::test_y", rows) == "not on TFX 1.21: because"


def test_rows_hold_on_the_newest_line_only(monkeypatch):
    for version, found in (("1.21.0", excused.rows()), ("1.16.0", {}), ("1.2.1", {})):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, v=version: v)
        assert excused.rows_here() == found
