"""Imports a program's own modules with their repairs, in this process and in those that it starts."""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import multiprocessing.spawn
import os
import sys
import types
import zipimport
from collections.abc import Callable, Sequence
from typing import Any

from tfx_tpu_trainer.compat._installation import install
from tfx_tpu_trainer.compat._repairs import OwnFiles, Repairs


class RepairingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of one program; all others it leaves to the next finder."""

    def __init__(self, repairs: Repairs) -> None:
        """Keeps the repairs."""
        self._repairs = repairs

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module of the program's, with a loader that repairs it."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not spec.origin or spec.origin not in self._repairs.files:
            return None
        loader: Any = spec.loader
        if type(loader) is importlib.machinery.SourceFileLoader:
            spec.loader = RepairingFileLoader(fullname, spec.origin, self._repairs)
        elif type(loader) is zipimport.zipimporter:
            place = os.path.join(loader.archive, loader.prefix)
            repairing: Any = _RepairingArchiveLoader(place, self._repairs)
            spec.loader = repairing
        else:
            return None
        return spec


class RepairingFileLoader(importlib.machinery.SourceFileLoader):
    """Loads a source file, repaired; compiled code is neither read nor written."""

    def __init__(self, fullname: str, path: str, repairs: Repairs) -> None:
        """Keeps the file."""
        super().__init__(fullname, path)
        self._repairs = repairs

    def get_source(self, fullname: str) -> str | None:
        """Returns the text that runs."""
        source = super().get_source(fullname)
        return source and self._repairs.text_to_run(self.path, source)

    def get_code(self, fullname: str) -> types.CodeType | None:
        """Compiles the text that runs."""
        try:
            source = self.get_source(fullname)
        except (ImportError, UnicodeDecodeError, SyntaxError):
            # No text in the encoding that it claims: Python says so.
            return super().get_code(fullname)
        return compile(source or "", self.path, "exec", dont_inherit=True)


class _RepairingArchiveLoader(zipimport.zipimporter):
    """Loads a module of an archive, repaired."""

    def __init__(self, place: str, repairs: Repairs) -> None:
        super().__init__(place)
        self._repairs = repairs

    def get_source(self, fullname: str) -> str | None:
        """Returns the text that runs."""
        source = super().get_source(fullname)
        return source and self._repairs.text_to_run(self.get_filename(fullname), source)

    def get_code(self, fullname: str) -> types.CodeType:
        """Compiles the text that runs."""
        source = self.get_source(fullname)
        if source is None:
            return super().get_code(fullname)
        return compile(source, self.get_filename(fullname), "exec", dont_inherit=True)


_KEY = "tfx_tpu_trainer.compat"


def serve_workers(repairs: Repairs | None) -> None:
    """Lets processes of the start methods "spawn" and "forkserver" begin as this one did.

    Forked ones have it all by themselves. What such a process is told at its start it unpickles
    before it imports the program; a value in there does the installation.
    """
    original: Callable[[str], dict[str, Any]] = multiprocessing.spawn.get_preparation_data
    start = _Start(None if repairs is None else repairs.files.roots)

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        module = _name_of(data.get("init_main_from_path"))
        if repairs is not None and module is not None:
            # By its name the program's own file is imported, and so repaired.
            del data["init_main_from_path"]
            data["init_main_from_name"] = module
        return {_KEY: start, **data}

    vars(multiprocessing.spawn)["get_preparation_data"] = get_preparation_data


@dataclasses.dataclass(frozen=True)
class _Start:
    """What a worker begins with, done when it is unpickled."""

    roots: Sequence[str] | None

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return start_worker, (self.roots,)


def start_worker(roots: Sequence[str] | None) -> None:
    """Begins a worker."""
    install()
    repairs = None
    if roots is not None:
        repairs = Repairs(OwnFiles(roots), shown=False)
        sys.meta_path.insert(0, RepairingFinder(repairs))
    serve_workers(repairs)


def _name_of(path: str | None) -> str | None:
    """Returns the module name under which a program's file is found, if there is one."""
    stem, suffix = os.path.splitext(os.path.basename(path or ""))
    if path is None or suffix != ".py" or not stem.isidentifier():
        return None
    spec = importlib.machinery.PathFinder.find_spec(stem)
    origin = spec.origin if spec is not None else None
    found = origin is not None and os.path.realpath(origin) == os.path.realpath(path)
    return stem if found else None
