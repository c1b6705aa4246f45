"""What `tfx-tpu-trainer doctor` prints: a file's findings, and how much is to be done."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer._support.terminal import standard_output, text
from tfx_tpu_trainer.compat.doctor import Finding, Verdict

_INDENT: Final = 10
_STYLES: Final = {Verdict.WORKS: "green", Verdict.EDIT: "yellow", Verdict.NOTE: "cyan"}


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
        """How many findings say so; an edit counts once for each of its lines."""
        return sum(
            1 + (len(each.also_lines) if verdict is Verdict.EDIT else 0)
            for each in self.findings
            if each.verdict is verdict
        )


def print_file(examined: ExaminedFile) -> None:
    """Prints a file's findings; nothing for a file without any."""
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
            # To be given to `patch`: no line is to be broken or stripped, no character escaped.
            sys.stdout.write(f"{examined.diff}\n")
    console.print()


def print_summary(examined: Sequence[ExaminedFile], *, fix: bool) -> None:
    """Prints the last lines: how much is to be done, and how the program runs without it."""
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
        # A command to be copied is not broken.
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
