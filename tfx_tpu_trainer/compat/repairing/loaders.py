"""Importing a program's own modules with their repairs; nothing is written beside them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import types
import zipimport
from collections.abc import Sequence
from typing import Any

from tfx_tpu_trainer.compat.repairing.repairs import Repairs


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
