"""Finds the user's module, hashes its source, imports it, and finds its trainer_fn."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import io
import os
import subprocess
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer import compat
from tfx_tpu_trainer._support.messages import failures_are_named
from tfx_tpu_trainer.components._tfx_private import udf_utils
from tfx_tpu_trainer.components.trainer.values import suggest
from tfx_tpu_trainer.components.user_module._module import (
    exits_are_errors,
    import_file,
    import_module,
    imported_from,
)

TRAINER_FN = "trainer_fn"
# The functions that TpuTrainer trains.
MODEL_NAMES = frozenset({"model_fn", "build_model"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModuleSource:
    """The location of the user's module. Exactly one of `wheel`, `file` and `module` is set."""

    # "name@path/of/a.whl", in TFX's form for a packaged module_file.
    wheel: str | None = None
    file: str | None = None  # A .py file.
    module: str | None = None  # An import path, such as "pipelines.taxi.model".
    # Name of a legacy trainer_fn in `module`, if the component names it.
    trainer_fn: str | None = None

    @classmethod
    def from_exec_properties(cls, exec_properties: Mapping[str, Any]) -> ModuleSource:
        """Reads the module's location from a TpuTrainer's or a stock Trainer's properties."""
        if path := exec_properties.get("trainer_fn"):
            return cls.of_trainer_fn(path)
        if path := exec_properties.get("module_path"):
            return cls(wheel=path) if "@" in path else cls(module=path)
        if path := exec_properties.get("module_file"):
            return cls(file=path)
        if path := exec_properties.get("module"):
            return cls(module=path)
        if path := exec_properties.get("run_fn"):
            return cls(module=path.rpartition(".")[0] or path)
        raise ValueError(
            "no user module was given; set module_file='.../model.py' or module='package.model'"
        )

    @classmethod
    def of_trainer_fn(cls, path: str) -> ModuleSource:
        """Reads the import path of a legacy trainer_fn."""
        module, _, function = path.rpartition(".")
        if not module or not function:
            raise ValueError(
                f"trainer_fn={path!r} is not an import path of a function; give "
                "'package.module.trainer_fn'"
            )
        return cls(module=module, trainer_fn=function)

    def __str__(self) -> str:
        return self.file or self.module or (self.wheel or "").partition("@")[0]


def source_hash(module: str) -> str:
    """Hashes the source of a module that is given by its import path.

    TFX hashes a module_file (into its wheel's version), but only the name of an import path; with this hash among the
    execution properties, an edited module never matches a stale cache entry.

    Args:
        module: An import path. The module itself is not run; the packages around it are imported.

    Returns:
        A SHA-256 in hexadecimal over the names and contents of the module's file and, if it is in a package, of all .py
        files in the same folder (its likely helpers, which TFX's wheel of a module_file contains, too). Modules in
        other folders don't count.

    Raises:
        ValueError: If the module does not exist, or has no Python source.
    """
    digest = hashlib.sha256()
    for name, content in _files_of(module):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _files_of(module: str) -> Iterator[tuple[str, bytes]]:
    spec = _find(module)
    path = spec.origin
    if not path or not path.endswith(".py"):
        raise ValueError(
            f"module={module!r} has no .py file, so edits of it would go unnoticed; give a module "
            "with a source file"
        )
    folder = os.path.dirname(path)
    in_package = "." in module or spec.submodule_search_locations is not None
    for name in sorted(os.listdir(folder)) if in_package else [os.path.basename(path)]:
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as file:
                yield name, file.read()


def source_texts(source: ModuleSource) -> dict[str, str]:
    """Returns file name -> text for the files in the module's digest."""
    if source.module:
        files = dict(_files_of(source.module))
    else:
        path = source.file or udf_utils.decode_user_module_key(source.wheel)[1][-1]
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
        if source.file:
            files = {os.path.basename(path): content}
        else:
            with zipfile.ZipFile(io.BytesIO(content)) as wheel:
                names = [name for name in wheel.namelist() if name.endswith(".py")]
                files = {name: wheel.read(name) for name in sorted(names)}
    return {name: content.decode("utf-8", "replace") for name, content in files.items()}


def source_file(module: str) -> str | None:
    """Finds the .py file of an import path without running it."""
    try:
        path = _find(module).origin
    except ValueError:
        return None
    return path if path and path.endswith(".py") else None


def _find(module: str) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(module)
    except ImportError as error:
        raise ValueError(f"module={module!r} can't be imported: {error}; {_PATH_ADVICE}") from error
    except ValueError:
        # The name has a leading dot or is empty, or the module was made by hand.
        spec = None
    if spec is None:
        raise ValueError(f"module={module!r} can't be found; {_PATH_ADVICE}")
    return spec


_PATH_ADVICE = "give an import path like 'package.model' whose package is on PYTHONPATH"


@contextlib.contextmanager
def imported(
    source: ModuleSource, *, restore_tf_estimator: bool = False
) -> Iterator[types.ModuleType]:
    """Loads the user's module, and keeps its helpers importable while it is in use."""
    with exits_are_errors(str(source)), contextlib.ExitStack() as stack:
        path, load = _found(source, stack)
        legacy = source.trainer_fn or TRAINER_FN in read_source(path)
        if restore_tf_estimator and legacy:
            stack.enter_context(compat.install())
        module = load()
        with failures_are_named(module):
            yield module


def _found(
    source: ModuleSource, stack: contextlib.ExitStack
) -> tuple[str | None, Callable[[], types.ModuleType]]:
    """Returns the module's file and its loader; the stack keeps what must stay open."""
    if source.wheel:
        name, wheels = udf_utils.decode_user_module_key(source.wheel)
        # Left open, so an import inside model_fn finds the wheel's other modules. TFX appends their folder to the
        # path, where any other module with the same name would come first.
        try:
            installed = stack.enter_context(udf_utils.TempPipInstallContext(wheels))
        except subprocess.CalledProcessError as error:
            raise ValueError(
                f"the module's wheel {', '.join(wheels)} can't be installed (pip's output above "
                "has the reason); create the pipeline again, so that TFX repackages the module_file"
            ) from error
        folder = installed.temp_directory
        stack.enter_context(imported_from(folder))
        return os.path.join(folder, f"{name}.py"), functools.partial(import_module, name)
    if source.file:
        stack.enter_context(imported_from(os.path.dirname(os.path.abspath(source.file))))
        return source.file, functools.partial(import_file, source.file)
    name = str(source)
    return source_file(name), functools.partial(import_module, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LegacyModule:
    """A module with a trainer_fn."""

    name: str
    # Takes the arguments and the raw data's schema; returns a dict with the estimator and how to train it.
    trainer_fn: Callable[[Any, Any], Any]

    def __call__(self, fn_args: Any, schema: Any) -> Any:
        """Calls trainer_fn."""
        return self.trainer_fn(fn_args, schema)


def find_legacy(module: types.ModuleType, function: str | None = None) -> LegacyModule | None:
    """Finds a module's trainer_fn."""
    name = module.__name__
    found = getattr(module, function or TRAINER_FN, None)
    if found is None:
        if function is None:
            return None
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise ValueError(
            f"trainer_fn={f'{name}.{function}'!r}: the module has no {function!r}; "
            f"{suggest(function, functions)}"
        )
    for other in sorted(MODEL_NAMES):
        if function is None and hasattr(module, other):
            raise ValueError(
                f"module {name!r} has a {TRAINER_FN} and a {other}, which is ambiguous: give "
                "trainer_fn='package.module.trainer_fn' to train as the Estimator executor of TFX <= 1.15 did, or "
                f"rename its trainer_fn to have TpuTrainer train the {other}"
            )
    _check_arguments(name, function or TRAINER_FN, found)
    return LegacyModule(name=name, trainer_fn=found)


def read_source(path: str | None) -> str:
    """Returns a module's text, without running it; empty if it can't be read."""
    try:
        with open(path or "", encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _check_arguments(module: str, name: str, function: Any) -> None:
    where = f"{name} of module {module!r}"
    if not callable(function):
        raise ValueError(f"{where} is {function!r}; make it a function")
    signature = inspect.signature(function)
    try:
        signature.bind(None, None)
    except TypeError:
        raise ValueError(
            f"{where} takes {signature}; it is called as {name}(trainer_fn_args, schema), with the "
            "schema of the raw data"
        ) from None
