"""Imports names on first use, names the extra of a missing module, and chooses Keras 2 for TensorFlow."""

import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

_KERAS_VARIABLE = "TF_USE_LEGACY_KERAS"
# Imported from Keras 3 by `tf.keras` and `tensorflow.keras`; TensorFlow itself imports only its optimizers.
_KERAS_3_IN_USE = {"keras._tf_keras", "tensorflow.keras"}
# The messages of TensorFlow and Keras 3 about a name that only Keras 2 has.
_NOT_IN_KERAS_3 = re.compile(
    r"not (available with|supported in) Keras 3|module 'keras(\._tf_keras\.keras)?(\.\w+)*' has no attribute"
)

_logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable)


class MissingExtraError(ModuleNotFoundError):
    """A part of this package was imported without its requirements."""


@contextlib.contextmanager
def of_extra(extra: str, *, for_what: str) -> Iterator[None]:
    """Names the extra to install if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        # A missing module of this package means a damaged installation. If a package lacks one of its modules, such as
        # tensorflow.python.keras, it has another version, which no extra changes.
        package, dot, _ = (error.name or "").partition(".")
        if package == __name__.partition(".")[0] or (dot and _is_installed(package)):
            raise
        # Also for nested parts: the requested part's extra includes theirs.
        raise MissingExtraError(
            f"{for_what} needs {error.name}, which is not installed: pip install 'tfx-tpu-trainer[{extra}]'",
            name=error.name,
        ) from None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`, which import a name's module on first use."""
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


class Keras2NeededError(RuntimeError):
    """A user's function needs Keras 2, but TensorFlow uses Keras 3."""


def choose_keras_2(*, warns: bool = False) -> None:
    """Chooses Keras 2, whose layers and optimizers tf.estimator programs use.

    It has no effect after the program has used tf.keras. A value of the environment variable is kept.
    """
    if _KERAS_VARIABLE not in os.environ and not _KERAS_3_IN_USE & sys.modules.keys():
        os.environ[_KERAS_VARIABLE] = "1"
        if "tensorflow" in sys.modules:
            # `tf.keras` reads the variable when it is first used. `from tensorflow.keras import layers` uses
            # TensorFlow's path, which its own import has set: there the first folder wins.
            keras_2 = importlib.util.find_spec("tf_keras")
            assert keras_2 is not None and keras_2.origin is not None
            folder = os.path.join(os.path.dirname(keras_2.origin), "api", "_v2")
            sys.modules["tensorflow"].__path__.insert(0, folder)
    elif warns and not _is_chosen():
        _logger.warning(
            "TensorFlow has Keras 3. If the program uses tf.compat.v1.layers, feature columns or "
            "Keras 2 optimizers, set %s=1 before tf.keras is used.",
            _KERAS_VARIABLE,
        )


@contextlib.contextmanager
def keras_2_is_asked_for(function: str) -> Iterator[None]:
    """Explains how to get Keras 2 if the block uses a name that Keras 3 lacks."""
    try:
        yield
    except (AttributeError, ImportError) as error:
        if _is_chosen() or not _NOT_IN_KERAS_3.search(str(error)):
            raise
        name = getattr(error, "name", None)
        what = (
            f"{name!r}, which Keras 3 does not have"
            if name
            else "something that Keras 3 does not have"
        )
        raise Keras2NeededError(
            f"{function} uses {what}, and TensorFlow has Keras 3. For Keras 2, import "
            "tfx_tpu_trainer.estimator before tf.keras is used, "
            f"or set {_KERAS_VARIABLE}=1 in the environment of the program."
        ) from error


def _is_chosen() -> bool:
    return os.environ.get(_KERAS_VARIABLE) in ("1", "true", "True")


def without_notice(function: Function) -> Function:
    """Returns a deprecated TensorFlow function without its warning.

    TensorFlow's warning would quote a line of this package, which users can't change. Their own calls of the same
    function still warn.
    """
    return inspect.unwrap(function)
