"""The folder of a user's module: imported from before all others while it is in use, and not longer."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys
import types
from collections.abc import Iterator


@contextlib.contextmanager
def imported_from(folder: str) -> Iterator[None]:
    """Makes what lies in a folder win over modules of the same names, and undoes that at the end.

    Most modules of users are called `model.py`. Two pipelines in one process, as in a notebook, must each get their
    own, whatever was imported before and whatever else is on `sys.path`.

    Args:
        folder: Holds the user's module and the helpers that it imports.

    Yields:
        Nothing.
    """
    names = {path.stem for path in pathlib.Path(folder).glob("*.py")}
    others = {name: sys.modules[name] for name in names if _is_elsewhere(name, folder)}
    for name in others:
        del sys.modules[name]
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
        for name in names:
            if name in sys.modules and not _is_elsewhere(name, folder):
                del sys.modules[name]
        sys.modules.update(others)


def _is_elsewhere(name: str, folder: str) -> bool:
    module: types.ModuleType | None = sys.modules.get(name)
    if module is None or name == "__main__" or name in sys.stdlib_module_names:
        return False
    file = getattr(module, "__file__", None)
    return file is None or pathlib.Path(file).parent != pathlib.Path(folder)
