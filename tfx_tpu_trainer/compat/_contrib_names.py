"""`tf.contrib`, name by name, as a program asks for it.

A name of `tf.contrib` is this package's own where `tfx_tpu_trainer.compat.contrib` has it, else what the
doctor's tables say has its place under the same arguments. For all others the error is the doctor's
advice.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import re
import types
from typing import Any, Final

import tensorflow as tf

from tfx_tpu_trainer.compat._import_hooks import make_module
from tfx_tpu_trainer.compat._installation import UndoLog

_OURS: Final = "tfx_tpu_trainer.compat.contrib"
_CONTRIB: Final = "tensorflow.contrib"
_NAME: Final = re.compile(r"tensorflow(?:\.compat\.v1)?\.contrib((?:\.\w+)*)")
_PRIVATE: Final = "tensorflow.python."
_DOCTOR: Final = "`tfx-tpu-trainer doctor PROGRAM` examines the whole program."


class ContribNames:
    """The modules of `tf.contrib`, made when they are first asked for."""

    def __init__(self, log: UndoLog) -> None:
        """Keeps the log."""
        self._log = log
        self._modules: dict[str, types.ModuleType] = {}

    def module(self, name: str) -> types.ModuleType | None:
        """Makes the module of a name, if it is one of contrib's."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        if name not in self._modules:
            path = found.group(1).removeprefix(".")
            module = make_module(name, {}, doc=f"`{name}`, provided by its replacement of today.")
            today = _find(path)
            if isinstance(today, types.ModuleType):
                vars(module)["__getattr__"] = functools.partial(_attribute, today)
            elif _is_module(path):
                vars(module)["__getattr__"] = functools.partial(self._value, name, path)
            else:
                # With the module's own name, `from tensorflow.contrib import x` drops the words.
                above = name.rpartition(".")[0]
                raise ModuleNotFoundError(f"no module {name!r}: {_advice(path)}", name=above)
            self._modules[name] = module
            self._log.set_module(name, module)
        return self._modules[name]

    def _value(self, module: str, path: str, name: str) -> Any:
        """Returns what a module of contrib has under a name."""
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        below = f"{path}.{name}".removeprefix(".")
        value = _find(below)
        if value is None:
            # A private module is there only for those who import it.
            if ".python" in below or not _is_module(below):
                raise AttributeError(
                    f"module {module!r} has no attribute {name!r}: {_advice(below)}"
                )
            value = self.module(f"{module}.{name}")
        self._log.set_attribute(self._modules[module], name, value)
        return value


def _attribute(module: types.ModuleType, name: str) -> Any:
    """Returns an attribute of a module that another one stands for; not its file or its path."""
    if name.startswith("__"):
        raise AttributeError(f"module {module.__name__!r} stands for it and has {name!r} to itself")
    return getattr(module, name)


def _public(path: str) -> str:
    """Returns the public path of a name: `layers.python.layers.layers.flatten` is `layers.flatten`."""
    part, *rest = path.split(".")
    return f"{part}.{rest[-1]}" if len(rest) > 1 and rest[0] == "python" else path


def _find(path: str) -> Any:
    """Returns what has the place of a name, or of the public name that it is; `None`: nothing has."""
    found = _resolve(path) if path else None
    if found is None and path != _public(path):
        found = _resolve(_public(path))
    return _private(path) if found is None else found


def _private(path: str) -> Any:
    """Returns a name of a private module of contrib.tpu: those are in `tensorflow.python.tpu` today."""
    module, _, name = path.rpartition(".")
    if not module.startswith("tpu.python.tpu."):
        return None
    today = f"tensorflow.{module.removeprefix('tpu.')}"
    try:
        return getattr(importlib.import_module(today), name, None)
    except ImportError:
        return None


def _resolve(path: str) -> Any:
    part, _, name = path.rpartition(".")
    ours = _own_module(part)
    if ours is not None and name in ours.__all__:
        return getattr(ours, name)
    _, advice = _rule(path)
    if not _is_told(path) or advice.becomes is None or advice.calls_only:
        return None
    if advice.becomes.startswith("tensorflow.") and not advice.becomes.startswith(_PRIVATE):
        return functools.reduce(getattr, advice.becomes.split(".")[1:], tf)
    return pkgutil.resolve_name(advice.becomes)


def _own_module(part: str) -> Any:
    """Returns the module of our package that has the names of a part of contrib, if there is one."""
    name = f"{_OURS}.{part}"
    try:
        is_there = bool(part) and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        # What is above it is not there either, or is no package.
        return None
    module = importlib.import_module(name) if is_there else None
    return module if hasattr(module, "__all__") else None


def _is_module(path: str) -> bool:
    """Whether there is a module of contrib, some of whose names are there today."""
    part, *rest = path.split(".")
    if not part:
        return True
    if rest and rest[0] == "python":
        # Which private modules there were nobody keeps; but names that a rule knows are none.
        return _is_module(part) and not _is_told(path) and not rest[-1][:1].isupper()
    if _own_module(path) is not None:
        return True
    rules = importlib.import_module("tfx_tpu_trainer.compat.doctor.rules").RULES
    below = f"{_CONTRIB}.{path}."
    return any(
        name.startswith(below) and advice.becomes is not None and not advice.calls_only
        for name, advice in rules.items()
    )


def _rule(path: str) -> tuple[str, Any]:
    """Returns the doctor's rule for a name, and the part of contrib that it speaks of."""
    rules = importlib.import_module("tfx_tpu_trainer.compat.doctor.rules")
    # Some private modules have a rule of their own.
    for name in (path, _public(path)):
        key, advice = rules.look_up(rules.canonical(f"{_CONTRIB}.{name}".rstrip(".")))
        if key == f"{_CONTRIB}.{name}":
            break
    return key, advice


def _is_told(path: str) -> bool:
    """Whether a rule speaks of this name, and not only of a module above it."""
    return _rule(path)[0] in (f"{_CONTRIB}.{path}", f"{_CONTRIB}.{_public(path)}")


def _advice(path: str) -> str:
    _, advice = _rule(path)
    instead = advice.edit or advice.becomes
    return f"{advice.says} Instead: {instead}. {_DOCTOR}"
