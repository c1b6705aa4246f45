"""Puts the names that TensorFlow 2.16 took out back, with a log of how each change is undone."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

from tfx_tpu_trainer._support.imports import choose_keras_2

_lock = threading.RLock()
_installed: UndoLog | None = None


class Installation:
    """The effects of `install()`; a context manager that undoes them."""

    def __init__(self, *, made_here: bool) -> None:
        """Keeps whether leaving a `with` block undoes it.

        Args:
            made_here: Whether this call of `install()` found nothing installed.
        """
        self._made_here = made_here

    def uninstall(self) -> None:
        """Takes everything back, as `tfx_tpu_trainer.compat.uninstall()` does."""
        uninstall()

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made_here:
            uninstall()


def install(*, emulate: bool | None = None) -> Installation:
    """Puts `tf.estimator` and what went with it back, from this package.

    `docs/compat.md` lists the names. Imports TensorFlow if it is not imported yet, with Keras 2 (TF_USE_LEGACY_KERAS=1)
    unless the environment says otherwise. A second call changes nothing.

    Examples:
        >>> from tfx_tpu_trainer import compat
        >>> import tensorflow as tf
        >>> with compat.install():
        ...     print(tf.estimator.Estimator.__module__)
        tfx_tpu_trainer.estimator._estimator
        >>> hasattr(tf, "estimator")
        False

    Args:
        emulate: Whether TPU cores are emulated and any `TPUClusterResolver` is answered without a
            cloud. Defaults to `None`: what TFX_TPU_TRAINER_EMULATE=1 in the environment says.

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
        # After the choice of Keras: this imports TensorFlow.
        changes: Any = importlib.import_module("tfx_tpu_trainer.compat._tensorflow_names")
        log = UndoLog()
        try:
            changes.put_back(log, emulate=emulate)
        except BaseException:
            log.undo()
            raise
        _installed = log
    return Installation(made_here=True)


def uninstall() -> None:
    """Takes back all that `install()` did; without an installation it does nothing.

    TF_USE_LEGACY_KERAS stays as it is: TensorFlow was imported with it. What a program has bound by
    then keeps working.

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
