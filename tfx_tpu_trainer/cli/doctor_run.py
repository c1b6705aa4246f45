"""The files of a path, examined one after the other."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from tfx_tpu_trainer.cli.doctor_examined import Examined
from tfx_tpu_trainer.cli.doctor_text import print_file, print_summary
from tfx_tpu_trainer.doctor import (
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


def _examine(file: Path, *, fix: bool, diff: bool) -> Examined:
    source = read_source(file)
    if not (fix or diff):
        return Examined(file, tuple(examine(source.text)))
    repaired = repair(source.text)
    shown = _diff(source, repaired) if diff else ""
    if not fix:
        return Examined(file, tuple(examine(source.text)), diff=shown)
    if repaired.text != source.text:
        write_source(dataclasses.replace(source, text=repaired.text))
    return Examined(file, repaired.left, repaired.made, shown)


def _diff(source: Source, repaired: Repaired) -> str:
    lines = difflib.unified_diff(
        source.text.splitlines(),
        repaired.text.splitlines(),
        str(source.path),
        str(source.path),
        lineterm="",
    )
    return "\n".join(lines)


def _as_json(examined: Sequence[Examined], errors: Sequence[str], *, fix: bool) -> dict[str, Any]:
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
