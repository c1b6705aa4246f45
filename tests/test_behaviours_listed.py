"""The lists of what tests show: docs/behaviours.md, and docs/bad-input.md of the inputs that they see refused."""

import dataclasses
import re
from pathlib import Path

import pytest

from scripts.document_tests import (
    PAGE,
    STATES,
    TABLE,
    TESTS,
    Behaviour,
    Group,
    MarkedTest,
    marked_tests,
    page,
    read_table,
    sections,
)
from tests import bad_input
from tests.conftest import BAD_INPUT_ROWS

# The last number of each group, in the order of the page's sections.
_ENDS = (30, 45, 69, 90, 110, 143, 156, 183, 193, 219, 239, 253, 264, 271, 282, 291, 309)
LAST = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWX", (*_ENDS, 351, 379, 388, 400, 417, 438, 445)))
# What only a TPU could show; some of it has a test of what we do without one.
NEEDS_A_TPU = frozenset({89, 106, 181, 182, 218, 236, 239, 251, 387, 388, 400})
MOST_WITHOUT_A_TEST = 0.05


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return read_table(TABLE.read_text("utf-8"))


@pytest.fixture(scope="module")
def behaviours(groups) -> list[Behaviour]:
    return [each for group in groups for each in group.behaviours]


@pytest.fixture(scope="module")
def tests() -> dict[int, list[MarkedTest]]:
    return marked_tests(TESTS)


def test_every_number_stands_once_in_its_section(groups):
    first = 1
    assert [group.letter for group in groups] == list(LAST)
    for group in groups:
        last = LAST[group.letter]
        numbers = [each.number for each in group.behaviours]
        assert numbers == list(range(first, last + 1)), f"section {group.letter}"
        first = last + 1


def test_each_is_one_sentence(behaviours):
    for each in behaviours:
        assert each.original.endswith("."), each
        # Dots within a sentence come before a small letter, or within code.
        told = re.sub(r"`[^`]*`|\.\.\.", "", each.original)
        assert not re.search(r"\. [A-Z]", told), f"{each.number}: two sentences: {each.original}"
        assert len(each.original) <= 200, f"{each.number}: {each.original}"
    said = [each.original for each in behaviours]
    assert len(set(said)) == len(said)


def test_every_one_says_what_we_do_and_what_is_not_the_same_says_why(behaviours):
    for each in behaviours:
        assert each.kind, f"{each.number}: {each.state!r} begins with none of {STATES}"
        assert each.state == "same" or each.ours, (
            f"{each.number}: {each.state!r} does not say what we do"
        )
        assert each.kind != "not yet", f"{each.number} is missing"


def test_what_is_listed_has_a_test_of_its_number_or_a_reason(behaviours, tests):
    missing = [
        each.number
        for each in behaviours
        if each.kind in ("same", "lift") and each.number not in tests and not each.no_test
    ]
    assert missing == []


def test_few_behaviours_are_without_a_test(behaviours, tests):
    excused = {each.number for each in behaviours if each.no_test}
    assert sorted(excused & set(tests)) == [], "these have a test: take `no_test` away"
    checkable = {each.number for each in behaviours} - NEEDS_A_TPU
    untested = sorted(checkable - set(tests))
    assert len(untested) <= MOST_WITHOUT_A_TEST * len(checkable), untested


def test_markers_speak_of_behaviours_that_there_are(behaviours, tests):
    assert not set(tests) - {each.number for each in behaviours}


def test_the_page_is_that_of_the_table_and_the_markers():
    text = PAGE.read_text("utf-8")
    assert page(text) == text, "call `make docs`"


def test_a_section_has_sentences_states_and_the_closest_tests():
    group = Group(
        "A",
        "First",
        (
            Behaviour(1, "It does."),
            Behaviour(2, "It adds.", "same, but", "one more"),
            Behaviour(3, "It pads.", "lift", "cut", no_test="no TPU"),
        ),
        "And so on.",
    )
    tests = [
        MarkedTest("tests/test_it.py", name, shows)
        for name, shows in (("wide", 9), ("close", 1), ("last", 10))
    ]
    assert sections([group], {1: tests}).splitlines() == [
        "3 behaviours: 2 same, 1 lift. 1 have a test.",
        "",
        "## A. First",
        "",
        '- <a id="b1"></a>**1.** It does. *Test:* [`close`][t1], [`wide`][t1] and 1 more.',
        '- <a id="b2"></a>**2.** It adds. **Same, but**: one more.',
        '- <a id="b3"></a>**3.** It pads. **Lift**: cut. *No test:* no TPU.',
        "",
        "And so on.",
        "",
        "[t1]: ../tests/test_it.py",
    ]


def test_no_line_of_the_page_exceeds_100_columns():
    lines = PAGE.read_text("utf-8").splitlines()
    # A row of a table is one line.
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_a_key_that_no_behaviour_has_is_refused():
    text = (
        "- group: A\n  title: First\n  behaviours:\n    - {number: 1, original: It., sate: same}\n"
    )
    with pytest.raises(ValueError, match=r"behaviour 1: unknown \['sate'\]"):
        read_table(text)


def test_numbers_are_read_from_markers(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "@pytest.mark.behaviour(7, 12)\ndef test_one(x):\n    1\n"
        "class TestIt:\n    @pytest.mark.behaviour(1, *range(20, 23))\n    def test_in(self): 1\n"
        "@pytest.mark.behaviour(9)\ndef helper(): 1\n"
        "@pytest.mark.sweep(10)\ndef test_other(): 1\n"
    )
    (tmp_path / "other.py").write_text("@pytest.mark.behaviour(8)\ndef test_not_collected(): 1\n")
    found = marked_tests(tmp_path)
    assert sorted(found) == [1, 7, 12, 20, 21, 22]
    assert dataclasses.astuple(found[7][0]) == (f"{tmp_path.name}/test_it.py", "test_one", 2)


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
