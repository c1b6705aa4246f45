"""Installs and removes the names that TensorFlow 2.16 dropped, and hooks imports to alias old module names."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from importlib.abc import MetaPathFinder
from typing import Any, Final

from tfx_tpu_trainer._support.imports import choose_keras_2

_lock = threading.RLock()
_installed: UndoLog | None = None


class Installation:
    """The effects of `install()`; a context manager that undoes them."""

    def __init__(self, *, made_here: bool) -> None:
        """Stores whether leaving a `with` block uninstalls.

        Args:
            made_here: Whether this call of `install()` found nothing installed.
        """
        self._made_here = made_here

    def uninstall(self) -> None:
        """Uninstalls, as `tfx_tpu_trainer.compat.uninstall()` does."""
        uninstall()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made_here:
            uninstall()


def install(*, emulate: bool | None = None) -> Installation:
    """Restores `tf.estimator` and what was removed with it, from this package.

    `docs/compat.md` lists the names. Imports TensorFlow if it is not imported yet, with Keras 2 (TF_USE_LEGACY_KERAS=1)
    unless the environment has another value. A second call changes nothing.

    Examples:
        >>> from tfx_tpu_trainer import compat
        >>> import tensorflow as tf
        >>> with compat.install():
        ...     print(tf.estimator.Estimator.__module__)
        tfx_tpu_trainer.estimator._estimator
        >>> hasattr(tf, "estimator")
        False

    Args:
        emulate: Whether to emulate TPU cores, and to let any `TPUClusterResolver` work without a cloud. Defaults to
            `None`: whether the environment has TFX_TPU_TRAINER_EMULATE=1.

    Returns:
        A handle; as a context manager it undoes what this call did.

    Raises:
        RuntimeError: If TensorFlow (up to 2.15) has its own estimator, or the program has already bound the old names.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return Installation(made_here=False)
        choose_keras_2(warns=True)
        # Imported after the choice of Keras, since it imports TensorFlow.
        changes: Any = importlib.import_module("tfx_tpu_trainer.compat._tensorflow_names")
        log = UndoLog()
        try:
            changes.put_back(log, emulate=emulate)
        except BaseException:
            log.undo()
            raise
        # Set last: if a change fails, earlier ones are undone, and nothing counts as installed.
        _installed = log
    return Installation(made_here=True)


def uninstall() -> None:
    """Undoes `install()`; without an installation it does nothing.

    TF_USE_LEGACY_KERAS stays, since TensorFlow was imported with it. Names that a program has already bound keep
    working.

    Examples:
        >>> from tfx_tpu_trainer import compat
        >>> import tensorflow as tf
        >>> installation = compat.install()
        >>> hasattr(tf, "estimator")
        True
        >>> compat.uninstall()
        >>> hasattr(tf, "estimator")
        False
    """
    global _installed
    with _lock:
        if _installed is not None:
            _installed.undo()
            _installed = None


_MISSING: Any = object()


class UndoLog:
    """Makes changes and records how to undo them."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def set_attribute(self, owner: types.ModuleType, name: str, value: Any) -> None:
        """Sets an attribute of a module."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._steps.append(lambda: delattr(owner, name))
        else:
            self._steps.append(lambda: setattr(owner, name, before))

    def set_module(self, name: str, module: types.ModuleType) -> None:
        """Sets the module that an import finds under a name."""
        self._set_item(sys.modules, name, module)

    def add_finder(self, finder: MetaPathFinder) -> None:
        """Adds a finder before all others."""
        sys.meta_path.insert(0, finder)
        self._steps.append(lambda: sys.meta_path.remove(finder))

    def add_last_finder(self, finder: MetaPathFinder) -> None:
        """Adds a finder after all others."""
        sys.meta_path.append(finder)
        self._steps.append(lambda: sys.meta_path.remove(finder))

    def set_environment(self, name: str, value: str) -> None:
        """Sets an environment variable."""
        self._set_item(os.environ, name, value)

    def _set_item(self, items: MutableMapping[str, Any], name: str, value: Any) -> None:
        before = items.get(name, _MISSING)
        items[name] = value
        if before is _MISSING:
            self._steps.append(lambda: items.pop(name, None))
        else:
            self._steps.append(lambda: items.update({name: before}))

    def undo(self) -> None:
        """Undoes all changes, the last one first."""
        while self._steps:
            self._steps.pop()()


# Changes a freshly imported module.
Change = Callable[[types.ModuleType], None]


class ImportWatcher(importlib.abc.MetaPathFinder):
    """Sees every import first, and changes some modules.

    TensorFlow executes its API's modules again for each name they are imported by (`tensorflow.compat.v1` is another
    module than `tf.compat.v1`), so changing existing modules is not enough.
    """

    def __init__(
        self,
        *,
        change_of: Callable[[str], Change | None],
        module_of: Callable[[str], types.ModuleType | None],
        refusal_of: Callable[[str], str | None],
    ) -> None:
        self._change_of = change_of
        self._module_of = module_of
        self._refusal_of = refusal_of

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module through the other finders, to change it after its import."""
        refusal = self._refusal_of(fullname)
        if refusal is not None:
            # With a ModuleNotFoundError, `from package import name` would drop the message.
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
    """Delegates to a loader, then changes the module."""

    def __init__(self, loader: importlib.abc.Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        # Restores the module's own loader, which `inspect`, `pkgutil` and reloads use; they would not know this one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        # Modules of TensorFlow's API replace themselves with a wrapper.
        self._change(sys.modules.get(module.__name__, module))


_TRACKING: Final = "tensorflow.python.training.tracking"
_LAYERS: Final = "tf_keras.legacy_tf_layers"
_LAYERS_NOW: Final = "tf_keras.src.legacy_tf_layers"

MOVED: Final = {
    # Imported by tensorflow.python.layers.normalization, which tf-slim's batch_norm uses; tf_keras since 2.16 lacks it.
    **{
        f"{_LAYERS}.{name}": f"{_LAYERS_NOW}.{name}"
        for name in ("base", "convolutional", "core", "normalization", "pooling")
    },
    _LAYERS: _LAYERS_NOW,
    # TensorFlow 2.9 moved these; AdaNet and TensorFlow Hub up to 0.12 import them.
    f"{_TRACKING}.base": "tensorflow.python.trackable.base",
    f"{_TRACKING}.data_structures": "tensorflow.python.trackable.data_structures",
    f"{_TRACKING}.graph_view": "tensorflow.python.checkpoint.graph_view",
    f"{_TRACKING}.python_state": "tensorflow.python.trackable.python_state",
    f"{_TRACKING}.tracking": "tensorflow.python.trackable.autotrackable",
    f"{_TRACKING}.util": "tensorflow.python.checkpoint.checkpoint",
}
"""Old name -> today's."""


class MovedModulesFinder(importlib.abc.MetaPathFinder):
    """Finds moved modules by their old names, as the same module objects; comes last, so existing modules win."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds the moved module of an old name."""
        if fullname == _TRACKING:
            # A package without a folder, whose only contents are these modules.
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        today = MOVED.get(fullname)
        if today is None or importlib.util.find_spec(today) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _SameModule(today))


# importlib returns the module that is in `sys.modules` after `exec_module`: replacing it there makes the old name an
# alias of the same object, so `isinstance` holds for classes of both.
class _SameModule(importlib.abc.Loader):
    """Imports a module under its old name as the same object."""

    def __init__(self, today: str) -> None:
        self._today = today

    def exec_module(self, module: types.ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._today)


# The origin of modules made here, which `repr()` shows.
ORIGIN = "tfx_tpu_trainer.compat"


def make_module(name: str, values: Mapping[str, Any], *, doc: str) -> types.ModuleType:
    """Makes a module with given values.

    It is a package without a folder, so missing names are requested as its submodules, and the importer can
    explain why they are missing.
    """
    module = types.ModuleType(name, doc)
    loader = _ReadyLoader(module)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=ORIGIN, is_package=True)
    vars(module).update(
        values, __spec__=spec, __package__=name, __path__=[], __all__=sorted(values)
    )
    return module


class _ReadyLoader(importlib.abc.Loader):
    """Loads a module that exists already."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        del spec
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        """Does nothing."""


def is_alias(value: Any) -> bool:
    """Returns whether a value is a module made by `make_module`."""
    return is_module(value) and getattr(attribute(value, "__spec__"), "origin", None) == ORIGIN


def is_module(value: Any) -> bool:
    """Returns whether a value is a module; `isinstance` reads the value's `__class__`, and some proxies then raise."""
    return issubclass(type(value), types.ModuleType)


def attribute(module: types.ModuleType, name: str) -> Any:
    """Returns a module's attribute, or `None`, without loading a lazy module."""
    return (object.__getattribute__(module, "__dict__") or {}).get(name)
