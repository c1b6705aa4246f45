"""Changes to modules that are imported later, and clear words about those that are not there."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

# Changes a module that was just imported.
Change = Callable[[types.ModuleType], None]


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Sees every import first; most it leaves to the others.

    TensorFlow executes its API's modules again for each name under which they are imported
    (`tensorflow.compat.v1` is another module than `tf.compat.v1`), so that changing those that exist
    is not enough.
    """

    def __init__(
        self,
        *,
        change_of: Callable[[str], Change | None],
        module_of: Callable[[str], types.ModuleType | None],
        refusal_of: Callable[[str], str | None],
    ) -> None:
        """Keeps what to do."""
        self._change_of = change_of
        self._module_of = module_of
        self._refusal_of = refusal_of

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds what the other finders find, to change it once it is there."""
        refusal = self._refusal_of(fullname)
        if refusal is not None:
            # Of a ModuleNotFoundError, `from package import name` would drop the words.
            raise ImportError(refusal, name=fullname)
        made = self._module_of(fullname)
        if made is not None:
            return made.__spec__
        change = self._change_of(fullname)
        spec = None if change is None else self._find_elsewhere(fullname, path, target)
        if change is not None and spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, change)
        return spec

    def _find_elsewhere(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                return spec
        return None


class _ChangingLoader(importlib.abc.Loader):
    """Another loader, and a change when it is done."""

    def __init__(self, loader: importlib.abc.Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        # Modules of TensorFlow's API put a wrapper of theirs in their place.
        self._change(sys.modules.get(module.__name__, module))
