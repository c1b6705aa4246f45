"""What `tfx-tpu-trainer doctor` does: examines the files of a path one after the other, and prints what it found."""

from __future__ import annotations

import dataclasses
import difflib
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from tfx_tpu_trainer.doctor import (
    Finding,
    NotPythonError,
    Repaired,
    Source,
    UnreadableError,
    Verdict,
    examine,
    python_files,
    read_source,
    repair,
    write_source,
)


@dataclasses.dataclass(frozen=True)
class ExaminedFile:
    """One file's findings.

    Attributes:
        path: The file.
        findings: What was found; with --fix what is left.
        made: The findings whose edits were made.
        diff: The mechanical edits as a unified diff; "" where they were not asked for.
    """

    path: Path
    findings: tuple[Finding, ...]
    made: tuple[Finding, ...] = ()
    diff: str = ""

    def count(self, verdict: Verdict) -> int:
        """How many findings say so."""
        return sum(each.verdict is verdict for each in self.findings)


_PLAIN_WIDTH: Final = 120
_INDENT: Final = 10
_STYLES: Final = {Verdict.WORKS: "green", Verdict.EDIT: "yellow", Verdict.NOTE: "cyan"}


def print_file(examined: ExaminedFile) -> None:
    """Prints a file's findings; nothing for a file without any.

    Args:
        examined: The file.
    """
    if not (examined.findings or examined.made or examined.diff):
        return
    console = _console()
    console.print(Text(str(examined.path), style="bold"))
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
            # To be given to `patch`: no line is to be broken.
            console.print(Text(examined.diff), soft_wrap=True)
    console.print()


def print_summary(examined: Sequence[ExaminedFile], *, fix: bool) -> None:
    """Prints the last line: how much is to be done.

    Args:
        examined: All files.
        fix: Whether edits were made.
    """
    findings = [finding for each in examined for finding in each.findings]
    edits = [each for each in findings if each.verdict is Verdict.EDIT]
    fixable = sum(each.fixable for each in edits)
    made = sum(len(each.made) for each in examined)
    parts = [_counted(len(examined), "file")]
    if fix:
        parts.append(f"{_counted(made, 'edit')} made, {len(edits)} left to be made by hand")
    else:
        parts.append(f"{_counted(len(edits), 'edit')} needed, {fixable} of them made by --fix")
    parts.append(_counted(sum(each.verdict is Verdict.NOTE for each in findings), "note"))
    working = sum(each.verdict is Verdict.WORKS for each in findings)
    parts.append(f"{working} that work as they are")
    _console().print(Text("; ".join(parts) + "."))


def _console() -> Console:
    console = Console(highlight=False)
    # In a file or a pipe a line is a line.
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def _heading(finding: Finding, label: str, style: str) -> Text:
    heading = Text(f"{finding.line}:{finding.column}".rjust(_INDENT - 2) + "  ")
    heading.append(label, style=style)
    heading.append(f"  {finding.name}")
    if finding.also_lines:
        heading.append(f"  (also lines {', '.join(map(str, finding.also_lines))})", style="dim")
    return heading


def _print_indented(console: Console, text: str, *, style: str = "") -> None:
    for line in textwrap.wrap(text, console.width - _INDENT, break_on_hyphens=False):
        console.print(Text(" " * _INDENT + line, style=style))


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


NOTHING_TO_DO: Final = 0
EDITS_NEEDED: Final = 1
UNREADABLE: Final = 2


def run(path: str, *, fix: bool, diff: bool, as_json: bool) -> int:
    """Examines a file or folder and prints what was found.

    Args:
        path: The file or folder.
        fix: Whether the mechanical edits are made.
        diff: Whether they are shown.
        as_json: Whether one JSON object is printed in place of text.

    Returns:
        The exit code.
    """
    try:
        files = python_files(path)
    except UnreadableError as error:
        click.echo(f"Error: {error}", err=True)
        return UNREADABLE
    examined, errors = [], []
    for file in files:
        try:
            examined.append(_examine(file, fix=fix, diff=diff))
        except UnreadableError as error:
            errors.append(str(error))
            continue
        except NotPythonError as error:
            errors.append(f"{file}: {error}")
            continue
        if not as_json:
            print_file(examined[-1])
    if as_json:
        click.echo(json.dumps(_as_json(examined, errors, fix=fix), indent=2))
    else:
        print_summary(examined, fix=fix)
    for text in errors:
        click.echo(f"Error: {text}", err=True)
    if errors:
        return UNREADABLE
    edits = sum(each.count(Verdict.EDIT) for each in examined)
    return EDITS_NEEDED if edits else NOTHING_TO_DO


def _examine(file: Path, *, fix: bool, diff: bool) -> ExaminedFile:
    source = read_source(file)
    if not (fix or diff):
        return ExaminedFile(file, tuple(examine(source.text)))
    repaired = repair(source.text)
    shown = _diff(source, repaired) if diff else ""
    if not fix:
        return ExaminedFile(file, tuple(examine(source.text)), diff=shown)
    if repaired.text != source.text:
        write_source(dataclasses.replace(source, text=repaired.text))
    return ExaminedFile(file, repaired.left, repaired.made, shown)


def _diff(source: Source, repaired: Repaired) -> str:
    lines = difflib.unified_diff(
        source.text.splitlines(),
        repaired.text.splitlines(),
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
