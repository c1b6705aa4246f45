"""Where a project may be, and what it is called."""

from __future__ import annotations

import re
from pathlib import Path

from tfx_tpu_trainer._support.file_systems import check_is_utf8
from tfx_tpu_trainer.workbench.new.errors import ScaffoldError

_LONGEST_NAME = 64


def check_folder(folder: Path) -> None:
    """Refuses a folder that is there already, before anything is read."""
    check_name(folder)
    try:
        if folder.is_symlink() or folder.exists():
            raise ScaffoldError(f"{folder} already exists: remove it, or give a new folder")
        parents = folder.absolute().parents
        there = next(parent for parent in parents if parent.exists())
    except OSError as error:
        raise ScaffoldError(
            f"{str(folder)[:100]!r} can't be a folder ({error.strerror}): give another path"
        ) from None
    if not there.is_dir():
        raise ScaffoldError(f"{there} is a file, so {folder} can't exist: give a folder elsewhere")


def check_name(path: Path) -> None:
    """Refuses a path that is not UTF-8, since TensorFlow can't take it."""
    try:
        check_is_utf8("path", path)
    except ValueError as error:
        raise ScaffoldError(str(error)) from None


def project_name(folder: Path) -> str:
    """What the pipeline of a folder is called: small letters, digits, `_` and `-`."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-_")
    name = name if name[:1].isalpha() else f"project-{name}"
    return name[:_LONGEST_NAME].rstrip("-_")
