"""Changes to modules of others that can be taken back exactly."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

_MISSING: Any = object()


class UndoLog:
    """Makes changes, and keeps how each is undone."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def set_attribute(self, owner: types.ModuleType, name: str, value: Any) -> None:
        """Sets an attribute of a module."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._steps.append(lambda: delattr(owner, name))
        else:
            self._steps.append(lambda: setattr(owner, name, before))

    def set_module(self, name: str, module: types.ModuleType) -> None:
        """Sets what `import` finds under a name."""
        before = sys.modules.get(name, _MISSING)
        sys.modules[name] = module
        if before is _MISSING:
            self._steps.append(lambda: _forget(name))
        else:
            self._steps.append(lambda: sys.modules.update({name: before}))

    def add_finder(self, finder: MetaPathFinder) -> None:
        """Asks a finder before all others at every import to come."""
        sys.meta_path.insert(0, finder)
        self._steps.append(lambda: sys.meta_path.remove(finder))

    def add_last_finder(self, finder: MetaPathFinder) -> None:
        """Asks a finder after all others at every import to come."""
        sys.meta_path.append(finder)
        self._steps.append(lambda: sys.meta_path.remove(finder))

    def set_environment(self, name: str, value: str) -> None:
        """Sets an environment variable."""
        before = os.environ.get(name)
        os.environ[name] = value
        if before is None:
            self._steps.append(lambda: _unset(name))
        else:
            self._steps.append(lambda: os.environ.update({name: before}))

    def undo(self) -> None:
        """Takes all changes back, the last one first."""
        while self._steps:
            self._steps.pop()()


def _forget(name: str) -> None:
    sys.modules.pop(name, None)


def _unset(name: str) -> None:
    os.environ.pop(name, None)
