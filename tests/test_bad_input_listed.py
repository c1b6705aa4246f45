"""docs/bad-input.md counts the inputs that tests see refused, and shows an example of each test file."""

from pathlib import Path

import pytest

from tests import bad_input
from tests.conftest import BAD_INPUT_ROWS

GIVEN = bad_input.row("component", "`steps=-1`", "steps is -1", "give").args[0]


def test_the_page_is_what_the_tests_say(request):
    rows = request.config.stash[BAD_INPUT_ROWS]
    page = bad_input.PAGE.read_text(encoding="utf-8")
    if [Path(argument).name for argument in request.config.args] == ["tests"]:
        assert len(rows) >= bad_input.LEAST_ROWS
        assert page == bad_input.page_of(rows), "run `make docs`"
    for _, test in rows:
        assert bad_input.file_link(test.partition("::")[0]) in page, f"{test}: run `make docs`"


@pytest.mark.parametrize(
    "message",
    [
        "steps is 1: give more",
        "steps is -1: give\nmore",
        "give another one: steps is -1",
        "Graph execution error: steps is -1, give",
    ],
)
def test_a_message_that_says_it_otherwise_fails(message):
    GIVEN.check("steps is -1: give 1 or more")
    with pytest.raises(AssertionError):
        GIVEN.check(message)


def test_a_row_says_something():
    with pytest.raises(ValueError, match="any message"):
        bad_input.row("component", "`steps=-1`", "is")
    with pytest.raises(ValueError, match="no group 'none'"):
        bad_input.row("none", "`steps=-1`", "steps")
