"""What `tfx-tpu-trainer doctor` does: examines the files of paths, side by side, and prints what it found."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import difflib
import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import track

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer.compat.doctor import (
    NOTEBOOK,
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
from tfx_tpu_trainer.workbench.cli.doctor_report import ExaminedFile, print_file, print_summary

NOTHING_TO_DO: Final = 0
EDITS_NEEDED: Final = 1
UNREADABLE: Final = 2
# Bytes from which processes gain more than it takes to start them: half a second of one.
_SIDE_BY_SIDE: Final = 1_000_000
_FILES_AT_ONCE: Final = 8


def run(paths: Sequence[str], *, fix: bool, diff: bool, as_json: bool) -> int:
    """Examines files and folders and prints what was found."""
    files: dict[Path, None] = {}
    errors: list[str] = []
    for path in paths:
        try:
            # A file may be given twice, by its folder too.
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
    for text in errors:
        click.echo(f"Error: {printable(text)}", err=True)
    if errors:
        return UNREADABLE
    edits = sum(each.count(Verdict.EDIT) for each in examined)
    return EDITS_NEEDED if edits else NOTHING_TO_DO


def _results(
    files: Sequence[Path], look_at: Callable[[Path], ExaminedFile | str], *, quiet: bool
) -> list[ExaminedFile | str]:
    """Looks at files in as many processes as there are processors, where that is quicker."""
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
    # A process that is forked has everything imported.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        return list(bar(pool.map(look_at, files, chunksize=_FILES_AT_ONCE)))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _examine_or_say_why(file: Path, *, fix: bool, diff: bool) -> ExaminedFile | str:
    """Examines a file; what is wrong with one that can't be read is told beside the others' findings."""
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
