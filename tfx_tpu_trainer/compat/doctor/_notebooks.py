"""Examines and repairs notebooks by treating their code cells as one program."""

import ast
import bisect
import dataclasses
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tfx_tpu_trainer.compat.doctor._examine import Examined, Repaired, found_in, repair_with
from tfx_tpu_trainer.compat.doctor._findings import Finding, told_once
from tfx_tpu_trainer.compat.doctor._program import NotPythonError

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()
# Input that only IPython reads: %magic, !command, name?, and files = !ls.
_NOT_PYTHON: Final = re.compile(r"\s*[%!?]|.*\?\s*$|\s*[\w, ]+=\s*[%!]")
# Cell magics whose cells are Python.
_PYTHON_CELLS: Final = re.compile(r"\s*%%(time|timeit|capture|prun|snapshot)\b")
_NAMED_LINE: Final = re.compile(r"\(line (\d+)\)")


class NotANotebookError(ValueError):
    """A text that is not a notebook; the message has the reason."""


def examine_notebook(text: str) -> list[Finding]:
    """Reports what a notebook's code uses, and whether it still works.

    Args:
        text: A notebook of format 4, as JSON. Its magics and shell lines are skipped.

    Returns:
        The findings, in the order of the cells; `cell` counts code cells from 1, and `line` is the
        line in the cell.

    Raises:
        NotANotebookError: If the text is not a notebook.
        NotPythonError: If a cell is not Python 3; the message names cell and line.
    """
    notebook = _Notebook(text)
    return notebook.look_at(notebook.program).findings


def repair_notebook(text: str) -> Repaired:
    """Makes the mechanical edits in a notebook's code cells; everything else stays byte for byte.

    Args:
        text: A notebook of format 4, as JSON.

    Returns:
        The notebook with the edits.

    Raises:
        NotANotebookError: If the text is not a notebook.
        NotPythonError: If a cell is not Python 3; the message names cell and line.
    """
    notebook = _Notebook(text)
    repaired = repair_with(notebook.look_at, notebook.program)
    return dataclasses.replace(repaired, text=notebook.with_program(repaired.text))


def notebook_code(text: str) -> str:
    """Returns a notebook's code cells as one text, each below a heading, for display.

    Args:
        text: A notebook of format 4, as JSON.

    Returns:
        The code, with unchanged magics and shell lines.

    Raises:
        NotANotebookError: If the text is not a notebook.
    """
    notebook = _Notebook(text)
    return notebook.restored(notebook.program)


@dataclasses.dataclass(frozen=True)
class _Source:
    """A code cell's source in the JSON text.

    Attributes:
        start: Where its value starts.
        end: Where it ends.
        lines: Whether it is a list of lines, as Jupyter writes it.
        code: The code.
    """

    start: int
    end: int
    lines: bool
    code: str


class _Notebook:
    """A notebook and its code as one program.

    Attributes:
        text: Its JSON.
        program: Its code as one program. A comment precedes each cell, and `pass` replaces lines that are not Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._sources = list(_code_sources(text))
        self._mark = "# %% cell"
        while any(self._mark in each.code for each in self._sources):
            self._mark += "_"
        self._hidden: list[str] = []
        self.program = "".join(
            f"{self._mark} {number}\n{self._python_of(each.code)}\n"
            for number, each in enumerate(self._sources, 1)
        )

    def look_at(self, program: str) -> Examined:
        """Examines the code, original or edited."""
        starts = self._starts(program)
        try:
            examined = found_in(program)
        except NotPythonError as error:
            cell, line = _place(starts, error.line)
            raise NotPythonError(line, error.reason, cell=cell) from None
        findings = [_in_cell(each, starts) for each in examined.findings]
        return dataclasses.replace(examined, findings=told_once(findings))

    def restored(self, program: str) -> str:
        """Restores the lines that `pass` replaced."""
        return re.sub(
            rf"^[ \t]*pass  {re.escape(self._mark)} line (\d+)$",
            lambda match: self._hidden[int(match[1])],
            program,
            flags=re.MULTILINE,
        )

    def with_program(self, program: str) -> str:
        """Returns the notebook with an edited program's cells."""
        if program == self.program:
            return self.text
        lines = _lines(self.restored(program))
        marks = [at - 1 for at in self._starts("".join(lines))]
        # Text above the first mark belongs to the first cell.
        cells = [
            lines[start + 1 : end] for start, end in zip(marks, [*marks[1:], None], strict=True)
        ]
        text = self.text
        cells[0] = lines[: marks[0]] + cells[0]
        for source, cell in reversed(list(zip(self._sources, cells, strict=True))):
            code = "".join(cell)[:-1]
            if code != source.code:
                text = text[: source.start] + self._written(source, code) + text[source.end :]
        return text

    def _starts(self, program: str) -> list[int]:
        """Returns the lines with the cells' marks, counted from 1."""
        mark = re.compile(rf"{re.escape(self._mark)} \d+$")
        return [number for number, line in enumerate(program.split("\n"), 1) if mark.match(line)]

    # A magic can't be recognized by its look alone: `%x` may continue a modulo from the line above, and `!` may be
    # inside a string. So only lines at which Python's parser stops are considered, and replaced if they look like one.
    # Each becomes one `pass`, so line numbers stay.
    def _python_of(self, code: str) -> str:
        """Returns a cell's code with `pass` for IPython's lines; line numbers stay."""
        lines = code.split("\n")
        first = next((i for i, line in enumerate(lines) if line.strip()), 0)
        if lines[first].lstrip().startswith("%%"):
            last = first + 1 if _PYTHON_CELLS.match(lines[first]) else len(lines)
            for at in range(first, last):
                self._hide(lines, at)
        while (wrong := _line_of_error(lines)) is not None and _NOT_PYTHON.match(lines[wrong]):
            self._hide(lines, wrong)
        return "\n".join(lines)

    def _hide(self, lines: list[str], at: int) -> None:
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        self._hidden.append(lines[at])
        lines[at] = f"{indent}pass  {self._mark} line {len(self._hidden) - 1}"

    def _written(self, source: _Source, code: str) -> str:
        """Formats a cell's code as JSON, in the notebook's own style."""
        ascii_only = self.text.isascii()
        if not source.lines:
            return json.dumps(code, ensure_ascii=ascii_only)
        old = self.text[source.start : source.end]
        before = re.match(r"\[\s*", old)
        after = re.search(r"\s*\]$", old)
        assert before is not None
        assert after is not None
        between = f",{before[0][1:]}" if before[0] != "[" else ", "
        lines = [json.dumps(line, ensure_ascii=ascii_only) for line in _lines(code)]
        return before[0] + between.join(lines) + after[0]


def _lines(code: str) -> list[str]:
    """Splits code as Jupyter does: after each line feed."""
    return [line for line in re.split(r"(?<=\n)", code) if line]


def _line_of_error(lines: Sequence[str]) -> int | None:
    """Returns the index of the line at which Python's parser stops; `None` if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return min(max((error.lineno or 1) - 1, 0), len(lines) - 1)
    except (ValueError, RecursionError, MemoryError):
        # Examining the whole program reports it.
        return None
    return None


def _place(starts: Sequence[int], line: int) -> tuple[int, int]:
    """Returns the cell of a program's line, and the line within it."""
    cell = max(bisect.bisect_right(starts, line), 1)
    return cell, max(line - starts[cell - 1], 1)


def _in_cell(finding: Finding, starts: Sequence[int]) -> Finding:
    cell, line = _place(starts, finding.line)

    def named(match: re.Match[str]) -> str:
        return "(cell {}, line {})".format(*_place(starts, int(match[1])))

    return dataclasses.replace(
        finding, cell=cell, line=line, says=_NAMED_LINE.sub(named, finding.says), also_lines=()
    )


def _code_sources(text: str) -> Iterator[_Source]:
    """Yields the sources of a notebook's code cells with their places in the text."""
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotANotebookError(
            f"line {error.lineno}: not valid JSON ({error.msg}), which a notebook is."
        ) from None
    except RecursionError:
        raise NotANotebookError("JSON that is nested too deeply to be read.") from None
    except ValueError:
        raise NotANotebookError(
            "JSON with a number of thousands of digits, which is not read."
        ) from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise NotANotebookError(
            "not a notebook of format 4, the one with cells. Convert an older one with `jupyter "
            "nbconvert --to notebook --inplace`."
        )
    if _language(notebook) != "python":
        return
    start, _ = _members(text, _SPACE.match(text).end())["cells"]  # type: ignore[union-attr]
    for cell_start in _items(text, start):
        cell, _ = _DECODER.raw_decode(text, cell_start)
        if not isinstance(cell, dict) or cell.get("cell_type") != "code" or "source" not in cell:
            continue
        source = cell["source"]
        value_start, value_end = _members(text, cell_start)["source"]
        code = "".join(map(str, source)) if isinstance(source, list) else str(source)
        yield _Source(value_start, value_end, isinstance(source, list), code)


def _language(notebook: dict[str, Any]) -> str:
    metadata = notebook.get("metadata")
    info = metadata.get("language_info") if isinstance(metadata, dict) else None
    name = info.get("name") if isinstance(info, dict) else None
    return str(name or "python").lower()


def _members(text: str, at: int) -> dict[str, tuple[int, int]]:
    """Returns the start and end of each value in the JSON object that begins at a position."""
    found: dict[str, tuple[int, int]] = {}
    at = _after_space(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        found[key] = (start, end)
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found


def _items(text: str, at: int) -> Iterator[int]:
    """Yields the start and end of each item in the JSON list that begins at a position."""
    at = _after_space(text, at + 1)
    while text[at] != "]":
        yield at
        _, end = _DECODER.raw_decode(text, at)
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
