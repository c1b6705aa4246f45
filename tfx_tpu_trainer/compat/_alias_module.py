"""Modules that exist in no file: other names for what this package has."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import types
from collections.abc import Mapping
from typing import Any

# Where such a module says that it comes from; `repr()` shows it.
ORIGIN = "tfx_tpu_trainer.compat"


def make_module(name: str, values: Mapping[str, Any], *, doc: str) -> types.ModuleType:
    """Makes a module of values.

    It is a package without a folder, so that names that it lacks are requested as modules below it, which lets the
    importer say why they are not there.
    """
    module = types.ModuleType(name, doc)
    loader = _ReadyLoader(module)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=ORIGIN, is_package=True)
    vars(module).update(
        values, __spec__=spec, __package__=name, __path__=[], __all__=sorted(values)
    )
    return module


class _ReadyLoader(importlib.abc.Loader):
    """Loads a module that is made already."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        del spec
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leaves it as it is."""


def is_alias(value: Any) -> bool:
    """Whether a value is a module that `make_module` made."""
    return is_module(value) and getattr(attribute(value, "__spec__"), "origin", None) == ORIGIN


def is_module(value: Any) -> bool:
    """Whether a value is a module; `isinstance` would ask the value, and some proxies raise."""
    return issubclass(type(value), types.ModuleType)


def attribute(module: types.ModuleType, name: str) -> Any:
    """Returns what a module has under a name, or `None`; a lazy module is not loaded for it."""
    return (object.__getattribute__(module, "__dict__") or {}).get(name)
