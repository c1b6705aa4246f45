"""Which files are a program's own: those that may be repaired."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER

_INSTALLED: Final = ("site-packages", "dist-packages")


class OwnFiles:
    """The files below a program's folders, without what is installed there.

    Attributes:
        roots: The folders, archives or single files, without links.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        """Keeps the folders."""
        self.roots = tuple(os.path.realpath(root) for root in roots)

    def __contains__(self, path: str) -> bool:
        real = Path(os.path.realpath(path))
        if real.is_relative_to(PACKAGE_FOLDER.resolve()):
            return False
        return any(
            real.is_relative_to(root) and not _is_installed(real, Path(root)) for root in self.roots
        )


def files_of_program(path: str) -> OwnFiles:
    """Returns the own files of a program that is run by its path."""
    real = os.path.realpath(path)
    if os.path.isdir(real) or real.endswith((".zip", ".pyz", ".egg")):
        return OwnFiles([real])
    return OwnFiles([_folder_or_file(real)])


def files_of_module(name: str) -> OwnFiles:
    """Returns the own files of a program that is run by its name."""
    spec = importlib.util.find_spec(name.partition(".")[0])
    if spec is None:
        return OwnFiles([])
    if spec.submodule_search_locations is not None:
        return OwnFiles(list(spec.submodule_search_locations))
    is_file = isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    return OwnFiles([_folder_or_file(os.path.realpath(spec.origin or ""))] if is_file else [])


def _folder_or_file(file: str) -> str:
    """Returns the folder around a file and its package; the file where others' files stand by it."""
    folder = Path(file).parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    libraries = {Path(os.path.realpath(sysconfig.get_path(each))) for each in _LIBRARIES}
    return file if folder in libraries or folder.name in _INSTALLED else str(folder)


_LIBRARIES: Final = ("stdlib", "platstdlib", "purelib", "platlib")


def _is_installed(file: Path, root: Path) -> bool:
    """Whether a file below a program's folder is of an environment, or of a package index."""
    between = file.relative_to(root).parts[:-1]
    folders = [root.joinpath(*between[: number + 1]) for number in range(len(between))]
    return any(each.name in _INSTALLED or (each / "pyvenv.cfg").exists() for each in folders)
