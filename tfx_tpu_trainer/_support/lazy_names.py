"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfx_tpu_trainer._support.extras import of_extra


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`: they import a name's module when the name is first used."""
    modules = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        guard = contextlib.nullcontext() if extra is None else of_extra(extra, for_what=package)
        with guard:
            module = importlib.import_module(modules[name], package)
        found = getattr(module, name)
        # The next use does not come here.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
