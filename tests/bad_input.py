"""Bad input: the rows of docs/bad-input.md, each of them a test, and what is asked of every message.

    @pytest.mark.parametrize("steps", [case("rows", "`train_args.num_steps=-1`", "num_steps is -1", values=-1)])
    def test_steps_below_1_are_refused(steps, refused):
        with refused(ValueError):
            make(steps)

The fixture `refused` reads what the message has to say from the row, so the page shows what was tested.
"""

import contextlib
import dataclasses
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "bad-input.md"
LEAST_ROWS = 200

GROUPS = {
    "component": "Arguments of the components",
    "estimator": "Arguments of the estimators, input_fn and model_fn",
    "modules": "Modules",
    "data": "Data and the artifacts of other components",
    "config": "Configuration files",
    "tf_config": "TF_CONFIG and clusters",
    "eval_metrics": "eval_metrics.json, curves and baselines",
    "checkpoints": "Checkpoints and positions of the input",
    "exports": "Exports, warm-up and serving",
    "preflight": "preflight",
    "inspect": "inspect",
    "doctor": "doctor and compat",
    "new": "new",
    "predict": "predict",
    "tuning": "Searches of hyperparameters",
    "runners": "Runners and manifests",
    "disks": "Disks and folders",
}
"""Key of a group -> its heading, in the page's order."""

_HEAD = """# Bad input

This page shows which inputs are refused, and with which messages: {count} inputs, each with a test. Every error is one
message that names the value and the fix, so you rarely need this page; it has an example from each test file.
`make docs` writes it from the tests, which check the words of the message, that it has no traceback of TensorFlow, and
that the exit code is not 0. `…` stands for other words, such as a path. To list every input:

```sh
.make/venv/bin/python -m pytest tests --collect-only -q -m bad_input
```
"""
# The longest message of a file that fits into a cell is its example.
_EXAMPLE_WIDTH = 160

# What no user should have to read.
_RAW = re.compile(r"Traceback \(most recent|Graph execution error|Original stack trace|\{\{node ")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the page.

    Attributes:
        group: A key of `GROUPS`.
        given: The bad input, in Markdown.
        says: Parts of the message, in this order; other text may come between them.
        lines: The most lines of the message: one, unless it lists several problems.
    """

    group: str
    given: str
    says: tuple[str, ...]
    lines: int = 1

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(f"no group {self.group!r}; there are {', '.join(GROUPS)}")
        if not self.says or min(map(len, self.says)) < 3:
            raise ValueError(f"{self.given}: says={self.says!r} would be found in any message")

    def check(self, message: str) -> None:
        """Asserts that a message is fit for a user, and has its expected parts."""
        assert not _RAW.search(message), message
        assert len(message.strip().splitlines()) <= self.lines, message
        pattern = ".*".join(map(re.escape, self.says))
        assert re.search(pattern, message, re.DOTALL), f"no {self.says} in:\n{message}"

    def check_output(self, output: str) -> None:
        """Asserts the same of a command's output, in which the message may be among other lines."""
        assert not _RAW.search(output), output
        pattern = ".*".join(map(re.escape, self.says))
        lines = output.splitlines()
        found = any(re.search(pattern, line) for line in lines)
        assert found or (self.lines > 1 and re.search(pattern, output, re.DOTALL)), output


def row(group: str, given: str, *says: str, lines: int = 1) -> pytest.MarkDecorator:
    """Makes a test a row of the page.

    Args:
        group: A key of `GROUPS`.
        given: The bad input, in Markdown, in a reader's words.
        *says: Parts of the message: the argument or file, the value, the fix.
        lines: The most lines of the message.
    """
    return pytest.mark.bad_input(Row(group, given, says, lines))


def case(group: str, given: str, *says: str, values: Any, lines: int = 1, marks: Any = ()) -> Any:
    """Makes a parameter of `pytest.mark.parametrize` a row of the page.

    Args:
        group: A key of `GROUPS`.
        given: The bad input, in Markdown. The test's id is made from it.
        *says: Parts of the message.
        values: The parameter's value, or a tuple of them.
        lines: The most lines of the message.
        marks: Other marks of the parameter.
    """
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", given).strip("_")[:60]
    taken = values if isinstance(values, tuple) else (values,)
    return pytest.param(*taken, id=name, marks=[row(group, given, *says, lines=lines), *marks])


class Refused:
    """The value of the fixture `refused`: ways to check that a test's input is rejected."""

    def __init__(self, expected: Row) -> None:
        self.expected = expected
        self.seen = 0

    @contextlib.contextmanager
    def __call__(
        self, error: type[BaseException] | tuple[type[BaseException], ...] = ValueError
    ) -> Iterator[pytest.ExceptionInfo[BaseException]]:
        """Asserts that the block raises, in the words of the row.

        Args:
            error: The exception's class.
        """
        with pytest.raises(error) as raised:
            yield raised
        self.expected.check(str(raised.value))
        self.seen += 1

    def output(self, ended: click.testing.Result | subprocess.CompletedProcess[str]) -> None:
        """Asserts that a command has failed, in the words of the row.

        Args:
            ended: What `CliRunner.invoke` returned, or `subprocess.run` with its output as text.
        """
        if isinstance(ended, click.testing.Result):
            code, output = ended.exit_code, ended.output
            assert ended.exception is None or isinstance(ended.exception, SystemExit), (
                ended.exception
            )
        else:
            code, output = ended.returncode, (ended.stdout or "") + (ended.stderr or "")
        assert code > 0, f"exit code {code}:\n{output}"
        self.expected.check_output(output)
        self.seen += 1

    def log(self, text: str) -> None:
        """Asserts that a log names ignored or set aside input, where continuing is right."""
        self.expected.check_output(text)
        self.seen += 1


@pytest.fixture
def refused(request: pytest.FixtureRequest) -> Iterator[Refused]:
    """Checks that a row's input is rejected; a test that does not use it fails."""
    marker = request.node.get_closest_marker("bad_input")
    assert marker is not None, "a test that uses `refused` is a row: mark it with tests.bad_input"
    made = Refused(marker.args[0])
    yield made
    assert made.seen, "the row's message was not looked at"


def rows_of(items: Iterable[pytest.Item]) -> dict[tuple[Row, str], None]:
    """Returns the rows of collected tests, each with the name of its test."""
    return {
        (marker.args[0], item.nodeid.partition("[")[0]): None
        for item in items
        if (marker := item.get_closest_marker("bad_input")) is not None
    }


def page_of(rows: Iterable[tuple[Row, str]]) -> str:
    """Returns the text of docs/bad-input.md: per group and test file, the number of rows and an example."""
    by_file: dict[str, dict[str, list[Row]]] = {group: {} for group in GROUPS}
    for made, test in sorted(rows, key=lambda pair: (pair[0].given, pair[1])):
        by_file[made.group].setdefault(test.partition("::")[0], []).append(made)
    counts = {
        group: sum(len(of_file) for of_file in files.values()) for group, files in by_file.items()
    }
    parts = [_HEAD.format(count=f"{sum(counts.values()):,}")]
    for group, files in by_file.items():
        if files:
            lines = [
                f"| {file_link(file)} | {len(of_file)} | {_example(of_file)} |"
                for file, of_file in sorted(files.items())
            ]
            head = ["| test | inputs | for example | the message |", "|---|---|---|---|"]
            title = f"## {GROUPS[group]}: {counts[group]}"
            parts.append("\n".join([title, "", *head, *lines]) + "\n")
    return "\n".join(parts)


def file_link(file: str) -> str:
    """Returns a link from the page to a test file."""
    return f"[{Path(file).name}](../{file})"


def _example(rows: Iterable[Row]) -> str:
    cells = [f"{_cell(made.given)} | {_cell(' … '.join(made.says))}" for made in rows]
    short = [cell for cell in cells if len(cell) <= _EXAMPLE_WIDTH]
    return max(short, key=len) if short else min(cells, key=len)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
