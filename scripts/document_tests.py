"""Generates pages from tests: docs/behaviours.md and docs/bad-input.md. `make docs`.

docs/behaviours.yaml describes each behaviour of the original and ours; tests name the behaviours that they show:
`@pytest.mark.behaviour(12)`. The rows of bad input are marks of tests.bad_input.
"""

import ast
import contextlib
import dataclasses
import io
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.draw_pictures import with_block
from tests import bad_input

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "behaviours.yaml"
PAGE = ROOT / "docs" / "behaviours.md"
TESTS = ROOT / "tests"

MARKER = "pytest.mark.behaviour"
STATES = ("same", "lift", "n/a", "not yet")
# The page names up to this many tests per behaviour; tests that show the fewest other behaviours come first.
_MOST_TESTS = 2
_KEYS = {"number", "original", "state", "ours", "no_test"}


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """A numbered behaviour of the original.

    Attributes:
        number: Its number.
        original: What the original does, in one sentence.
        state: Our behaviour: one of `STATES`, and perhaps more words.
        ours: Our behaviour, if the state does not describe all of it.
        no_test: Why there is no test, if there is none.
    """

    number: int
    original: str
    state: str = "same"
    ours: str = ""
    no_test: str = ""

    @property
    def kind(self) -> str:
        """One of `STATES`: the beginning of `state`; "" if it is none of them."""
        return next((kind for kind in STATES if self.state.startswith(kind)), "")


@dataclasses.dataclass(frozen=True)
class Group:
    """A section of the page.

    Attributes:
        letter: `A` to `X`.
        title: Its heading.
        behaviours: In the order of their numbers.
        notes: Further notes, in Markdown.
    """

    letter: str
    title: str
    behaviours: tuple[Behaviour, ...]
    notes: str = ""


@dataclasses.dataclass(frozen=True)
class MarkedTest:
    """A test that shows behaviours.

    Attributes:
        path: Its file, below the repository.
        name: Its name.
        shows: The number of behaviours with which it is marked.
    """

    path: str
    name: str
    shows: int


def read_table(text: str) -> list[Group]:
    """Reads the table."""
    groups = []
    for group in yaml.safe_load(text):
        for each in group["behaviours"]:
            if unknown := set(each) - _KEYS:
                raise ValueError(
                    f"behaviour {each.get('number')}: unknown {sorted(unknown)}; {sorted(_KEYS)} are known"
                )
        behaviours = tuple(Behaviour(**each) for each in group["behaviours"])
        groups.append(Group(group["group"], group["title"], behaviours, group.get("notes", "")))
    return groups


def marked_tests(folder: Path) -> dict[int, list[MarkedTest]]:
    """Returns number -> tests marked with it; `@pytest.mark.behaviour(7, 8)` marks a test with both."""
    tests: dict[int, list[MarkedTest]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text("utf-8")
        # Parsing is the slow part.
        for node in ast.walk(ast.parse(text)) if MARKER in text else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                numbers = list(_marked(node))
                test = MarkedTest(str(path.relative_to(folder.parent)), node.name, len(numbers))
                for number in numbers:
                    tests.setdefault(number, []).append(test)
    return tests


def _marked(test: ast.FunctionDef) -> Iterator[int]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARKER:
            for given in decorator.args:
                if isinstance(given, ast.Constant):
                    yield given.value  # type: ignore[misc]
                else:
                    # `*range(1, 12)`, with literal bounds.
                    bounds: Any = given.value.args  # type: ignore[attr-defined]
                    yield from range(*(bound.value for bound in bounds))


def sections(groups: Sequence[Group], tests: dict[int, list[MarkedTest]]) -> str:
    """Returns the page's sections in Markdown."""
    closest = {number: _closest(marked) for number, marked in tests.items()}
    listed = [each.number for group in groups for each in group.behaviours]
    paths = sorted({path for number in listed for _, path in closest.get(number, [])[:_MOST_TESTS]})
    # Labels keep lines within 100 columns, which a test's name and path often exceed.
    labels = {path: f"t{number}" for number, path in enumerate(paths, 1)}
    lines = [_summary(groups, tests)]
    for group in groups:
        lines += ["", f"## {group.letter}. {group.title}", ""]
        for each in group.behaviours:
            lines += _item(each, closest.get(each.number, []), labels)
        if group.notes:
            lines += ["", _wrapped(group.notes.rstrip())]
    if labels:
        lines += ["", *(f"[{label}]: ../{path}" for path, label in labels.items())]
    return "\n".join([*lines, ""])


def _wrapped(text: str) -> str:
    """Wraps Markdown paragraphs and lists; tables stay."""
    blocks = []
    for block in text.split("\n\n"):
        # A list item begins on its own line; elsewhere a block is one item.
        for part in re.split(r"\n(?=- )", block):
            if part.startswith("|"):
                blocks.append(part)
            elif part.startswith("- "):
                blocks.append(_filled(part.removeprefix("- "), "- ", "  "))
            else:
                blocks.append(_filled(part))
            blocks.append("\n")
        blocks.append("\n")
    return "".join(blocks).rstrip()


def _filled(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text,
        100,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _closest(tests: Sequence[MarkedTest]) -> list[tuple[str, str]]:
    """Returns names and paths of tests, those that show the fewest behaviours first."""
    named = sorted(tests, key=lambda test: (test.shows, test.path, test.name))
    # Several classes of a file may use the same test name.
    return list(dict.fromkeys((test.name, test.path) for test in named))


def _summary(groups: Sequence[Group], tests: dict[int, list[MarkedTest]]) -> str:
    every = [each for group in groups for each in group.behaviours]
    counts = [(kind, sum(each.kind == kind for each in every)) for kind in STATES]
    shown = sum(each.number in tests for each in every)
    said = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    return f"{len(every)} behaviours: {said}. {shown} have a test."


def _item(
    each: Behaviour, tests: Sequence[tuple[str, str]], labels: Mapping[str, str]
) -> list[str]:
    text = f'<a id="b{each.number}"></a>**{each.number}.** {each.original}'
    if each.state != "same" or each.ours:
        text += f" **{each.state[0].upper()}{each.state[1:]}**" + (
            f": {each.ours}." if each.ours else "."
        )
    if tests:
        links = [f"[`{name}`][{labels[path]}]" for name, path in tests[:_MOST_TESTS]]
        more = len(tests) - _MOST_TESTS
        text += " *Test:* " + ", ".join(links) + (f" and {more} more." if more > 0 else ".")
    elif each.no_test:
        text += f" *No test:* {each.no_test}."
    return _filled(text, "- ", "  ").splitlines()


def page(text: str) -> str:
    """Returns the page with new sections."""
    return with_block(text, sections(read_table(TABLE.read_text("utf-8")), marked_tests(TESTS)))


class _Collected:
    """A pytest plugin that collects the rows of all tests, deselected ones included."""

    def __init__(self) -> None:
        self.page = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.page = bad_input.page_of(bad_input.rows_of(items))


def main() -> None:
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
    collected, printed = _Collected(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(
            ["--collect-only", "--quiet", "-p", "no:cacheprovider", "tests"], [collected]
        )
    if code != 0:
        sys.exit(f"the tests can't be collected:\n{printed.getvalue()[-2000:]}")
    bad_input.PAGE.write_text(collected.page, encoding="utf-8")


if __name__ == "__main__":
    main()
