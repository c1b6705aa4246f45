"""What must not be there when the old names are put back."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from tfx_tpu_trainer.compat._alias_module import attribute, is_alias, is_module

ORIGINAL = "tensorflow_estimator"
# A name that means nothing else; `try: ... except ImportError:` leaves None in it.
_OPTIONAL_NAMES = ("tf_estimator", ORIGINAL)
# Modules of these packages keep what they bind to themselves.
_LIBRARIES = (ORIGINAL, "tensorflow", "tf_keras", "keras", "tfx_tpu_trainer")


def check_names_are_free(places: Mapping[str, types.ModuleType]) -> None:
    """Checks that TensorFlow has no estimator of its own."""
    tensorflow = sys.modules["tensorflow"]
    for name, module in places.items():
        there = vars(module).get("estimator", sys.modules.get(f"{name}.estimator"))
        if there is None or is_alias(there):
            continue
        version = tuple(int(part) for part in tensorflow.__version__.split(".")[:2])
        advice = (
            "Run the program without tfx_tpu_trainer.compat, or on TensorFlow 2.16 or later."
            if version < (2, 16)
            else "Remove what defined it before compat.install()."
        )
        raise RuntimeError(
            f"{name}.estimator already exists: {there!r}, in TensorFlow {tensorflow.__version__}. "
            f"{advice}"
        )


def check_nothing_is_bound() -> None:
    """Checks that no module of the program holds what the old names gave before."""
    for module, name, value in _bound():
        what = (
            "found no tf.estimator and put None there"
            if value is None
            else f"holds {value!r} of the package {ORIGINAL}"
        )
        raise RuntimeError(
            f"install() was called after the program had bound the old names: {module}.{name} "
            f"{what}. Call tfx_tpu_trainer.compat.install() before {module} is imported, or run "
            "the program with python -m tfx_tpu_trainer.compat PROGRAM."
        )


def _bound() -> Iterator[tuple[str, str, Any]]:
    for module_name, module in list(sys.modules.items()):
        package = module_name.partition(".")[0]
        if package in _LIBRARIES or package in sys.stdlib_module_names or not is_module(module):
            continue
        for name, value in list(vars(module).items()):
            if (value is None and name in _OPTIONAL_NAMES) or _is_of_the_original(value):
                yield module_name, name, value


def _is_of_the_original(value: Any) -> bool:
    # Asked of all that a process has imported, hundreds of thousands of values: the quick answers come first.
    kind = type(value)
    if kind is types.FunctionType or issubclass(kind, type):
        home = value.__module__
    elif issubclass(kind, types.ModuleType):
        home = attribute(value, "__name__")
    else:
        return False
    if not isinstance(home, str) or not home.startswith(ORIGINAL):
        return False
    return home.partition(".")[0] == ORIGINAL and not is_alias(value)
