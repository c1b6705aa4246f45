"""`tfx-tpu-trainer doctor`: examines files in parallel and prints the findings."""

import concurrent.futures
import dataclasses
import difflib
import functools
import json
import multiprocessing
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import track
from rich.syntax import Syntax
from rich.text import Text

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import standard_output, text
from tfx_tpu_trainer.compat.doctor import (
    NOTEBOOK,
    Finding,
    NotANotebookError,
    NotPythonError,
    Repaired,
    Source,
    UnreadableError,
    Verdict,
    examine,
    examine_notebook,
    notebook_code,
    python_files,
    read_source,
    repair,
    repair_notebook,
    write_source,
)

NOTHING_TO_DO: Final = 0
EDITS_NEEDED: Final = 1
UNREADABLE: Final = 2
# Total size above which parallel processes save more than their start-up costs, half a second.
_SIDE_BY_SIDE: Final = 1_000_000

_FILES_AT_ONCE: Final = 8
_INDENT: Final = 10
_STYLES: Final = {Verdict.WORKS: "green", Verdict.EDIT: "yellow", Verdict.NOTE: "cyan"}


@dataclasses.dataclass(frozen=True)
class ExaminedFile:
    """The findings of one file."""

    path: Path
    # With --fix, the findings that remain.
    findings: tuple[Finding, ...]
    made: tuple[Finding, ...] = ()
    # The mechanical edits as a unified diff; "" if not requested.
    diff: str = ""

    def count(self, verdict: Verdict) -> int:
        """Counts the findings with a verdict; an edit counts once for each of its lines."""
        return sum(
            1 + (len(each.also_lines) if verdict is Verdict.EDIT else 0)
            for each in self.findings
            if each.verdict is verdict
        )


def run(paths: Sequence[str], *, fix: bool, diff: bool, as_json: bool) -> int:
    """Examines files and folders and prints the findings."""
    files: dict[Path, None] = {}
    errors: list[str] = []
    for path in paths:
        try:
            # A file may also be given by its folder.
            files |= dict.fromkeys(python_files(path))
        except UnreadableError as error:
            errors.append(str(error))
    results = _results(
        list(files), functools.partial(_examine_or_say_why, fix=fix, diff=diff), quiet=as_json
    )
    examined = [each for each in results if isinstance(each, ExaminedFile)]
    errors += [each for each in results if isinstance(each, str)]
    for each in () if as_json else examined:
        print_file(each)
    if as_json:
        click.echo(json.dumps(_as_json(examined, errors, fix=fix), indent=2))
    elif files:
        print_summary(examined, fix=fix)
    for message in errors:
        click.echo(f"Error: {printable(message)}", err=True)
    if errors:
        return UNREADABLE
    edits = sum(each.count(Verdict.EDIT) for each in examined)
    return EDITS_NEEDED if edits else NOTHING_TO_DO


def _results(
    files: Sequence[Path], look_at: Callable[[Path], ExaminedFile | str], *, quiet: bool
) -> list[ExaminedFile | str]:
    """Examines files in one process per core if that is faster."""
    stderr = Console(stderr=True)
    bar = functools.partial(
        track,
        description="Reading",
        total=len(files),
        console=stderr,
        transient=True,
        disable=quiet or not stderr.is_terminal,
    )
    processes = min(os.cpu_count() or 1, len(files) // _FILES_AT_ONCE)
    if processes < 2 or sum(map(_size, files)) < _SIDE_BY_SIDE:
        return list(bar(map(look_at, files)))
    # A forked process has all imports already.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        return list(bar(pool.map(look_at, files, chunksize=_FILES_AT_ONCE)))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _examine_or_say_why(file: Path, *, fix: bool, diff: bool) -> ExaminedFile | str:
    """Examines a file; an unreadable file gets a finding with the reason."""
    try:
        return _examine(file, fix=fix, diff=diff)
    except UnreadableError as error:
        return str(error)
    except (NotANotebookError, NotPythonError) as error:
        return f"{file}: {error}"


def _examine(file: Path, *, fix: bool, diff: bool) -> ExaminedFile:
    source = read_source(file)
    is_notebook = file.suffix == NOTEBOOK
    if not (fix or diff):
        findings = examine_notebook(source.text) if is_notebook else examine(source.text)
        return ExaminedFile(file, tuple(findings))
    repaired = repair_notebook(source.text) if is_notebook else repair(source.text)
    shown = _diff(source, repaired) if diff else ""
    if not fix:
        return ExaminedFile(file, repaired.found, diff=shown)
    if repaired.text != source.text:
        write_source(dataclasses.replace(source, text=repaired.text))
    return ExaminedFile(file, repaired.left, repaired.made, shown)


def _diff(source: Source, repaired: Repaired) -> str:
    before, after = source.text, repaired.text
    if source.path.suffix == NOTEBOOK:
        before, after = notebook_code(before), notebook_code(after)
    lines = difflib.unified_diff(
        before.splitlines(),
        after.splitlines(),
        str(source.path),
        str(source.path),
        lineterm="",
    )
    return "\n".join(lines)


def _as_json(
    examined: Sequence[ExaminedFile], errors: Sequence[str], *, fix: bool
) -> dict[str, Any]:
    return {
        "files": [
            {
                "path": str(each.path),
                "findings": [finding.as_json() for finding in each.findings],
                **({"made": [finding.as_json() for finding in each.made]} if fix else {}),
                **({"diff": each.diff} if each.diff else {}),
            }
            for each in examined
        ],
        "errors": list(errors),
        "summary": {
            "files": len(examined),
            "made": sum(len(each.made) for each in examined),
            "fixable": sum(finding.fixable for each in examined for finding in each.findings),
            **{verdict.value: sum(each.count(verdict) for each in examined) for verdict in Verdict},
        },
    }


def print_file(examined: ExaminedFile) -> None:
    """Prints a file's findings, if any."""
    if not (examined.findings or examined.made or examined.diff):
        return
    console = standard_output()
    console.print(text(str(examined.path), style="bold"))
    said: set[str] = set()
    for finding in examined.made:
        console.print(_heading(finding, "made", "green"))
        _print_indented(console, f"-> {finding.edit}")
    for finding in examined.findings:
        label = finding.verdict.value + (", --fix makes it" if finding.fixable else "")
        console.print(_heading(finding, label, _STYLES[finding.verdict]))
        if finding.says not in said:
            _print_indented(console, finding.says)
            said.add(finding.says)
        if finding.edit is not None:
            _print_indented(console, f"-> {finding.edit}", style="bold")
    if examined.diff:
        if console.is_terminal:
            console.print(Syntax(examined.diff, "diff", background_color="default"))
        else:
            # Input for `patch`: no line may be wrapped or stripped, and no character escaped.
            sys.stdout.write(f"{examined.diff}\n")
    console.print()


def print_summary(examined: Sequence[ExaminedFile], *, fix: bool) -> None:
    """Prints the summary: how much is to be edited, and how the program runs unedited."""
    findings = [finding for each in examined for finding in each.findings]
    edits = sum(each.count(Verdict.EDIT) for each in examined)
    fixable = sum(each.fixable for each in findings)
    made = sum(len(each.made) for each in examined)
    parts = [_counted(len(examined), "file")]
    if fix:
        parts.append(f"{_counted(made, 'edit')} made, {edits} left to make by hand")
    else:
        parts.append(f"{_counted(edits, 'edit')} needed, {fixable} of them made by --fix")
    parts.append(_counted(sum(each.verdict is Verdict.NOTE for each in findings), "note"))
    working = sum(each.verdict is Verdict.WORKS for each in findings)
    parts.append(f"{working} that work unchanged")
    standard_output().print(text("; ".join(parts) + "."))
    if not fix and edits and fixable == edits:
        program = shlex.quote(str(examined[0].path)) if len(examined) == 1 else "PROGRAM"
        line = f"Run it unchanged: python -m tfx_tpu_trainer.compat --repair {program}"
        # A command to be copied is not wrapped.
        standard_output().print(text(line), soft_wrap=True)


def _heading(finding: Finding, label: str, style: str) -> Text:
    place = f"{finding.line}:{finding.column}"
    if finding.cell is not None:
        place = f"cell {finding.cell}, {place}"
    heading = text(place.rjust(_INDENT - 2) + "  ")
    heading.append(label, style=style)
    heading.append(f"  {finding.name}")
    if finding.also_lines:
        heading.append(f"  (also lines {', '.join(map(str, finding.also_lines))})", style="dim")
    return heading


def _print_indented(console: Console, says: str, *, style: str = "") -> None:
    for line in textwrap.wrap(printable(says), console.width - _INDENT, break_on_hyphens=False):
        console.print(text(" " * _INDENT + line, style))


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
