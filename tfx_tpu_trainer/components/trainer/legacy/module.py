"""Modules with a trainer_fn: how one is known, in its source and loaded, and what its trainer_fn is called with."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from tfx import v1 as tfx

from tfx_tpu_trainer.components.trainer.values import suggest

TRAINER_FN = "trainer_fn"
MODEL_FN = "model_fn"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LegacyModule:
    """A module with a trainer_fn."""

    name: str  # The module's name, for messages.
    # Takes the arguments and the schema of the raw data, and returns a dict of the estimator and
    # how to train it.
    trainer_fn: Callable[[Any, Any], Any]

    def __call__(self, fn_args: Any, schema: Any) -> Any:
        """Calls trainer_fn."""
        return self.trainer_fn(fn_args, schema)


def find_legacy(module: types.ModuleType, function: str | None = None) -> LegacyModule | None:
    """Finds the trainer_fn of a module."""
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
    if function is None and hasattr(module, MODEL_FN):
        raise ValueError(both_message(name))
    _check_arguments(name, function or TRAINER_FN, found)
    return LegacyModule(name=name, trainer_fn=found)


def both_message(name: str) -> str:
    """Returns the error message for a module that has a trainer_fn and a model_fn."""
    return (
        f"module {name!r} has a trainer_fn and a model_fn, which is ambiguous: give "
        "trainer_fn='package.module.trainer_fn' to train as the Estimator executor of TFX <= 1.15 "
        "did, or rename its trainer_fn to have TpuTrainer train the model_fn"
    )


def names_in_source(path: str) -> frozenset[str]:
    """Returns the names that a module binds at its top level, without running it; `*` where it binds others."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset({"*"})
    return frozenset(_bound(tree))


def mentions_trainer_fn(path: str) -> bool:
    """Tells whether a module may have a trainer_fn: whether its source has the word."""
    try:
        with open(path, "rb") as file:
            return TRAINER_FN.encode() in file.read()
    except OSError:
        return False


# By these a module may bind names that its text does not show.
_BINDS_BY_NAME = frozenset({"exec", "eval", "globals", "locals", "modules", "setattr", "vars"})


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        elif (
            getattr(node, "id", None) in _BINDS_BY_NAME or getattr(node, "attr", None) == "modules"
        ):
            yield "*"
    for node in _top_level(tree):
        if isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield node.id
        elif isinstance(name := getattr(node, "name", None), str):
            # A function, a class, and what `except` and `case` bind.
            yield "*" if name == "__getattr__" else name


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Goes through all nodes but those in functions and classes, conditional ones included."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending.extend(ast.iter_child_nodes(node))


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


class LegacyFnArgs(tfx.components.FnArgs):
    """FnArgs in every form that a TFX release has handed to trainer_fn.

    TFX 0.1x gave an object with the entries of `custom_config` among its attributes, TFX 0.2x a dict
    whose keys were attributes too, and TFX 1.x `FnArgs`. A module may rely on any of them.
    """

    def __getattr__(self, name: str) -> Any:
        # Only called for what is no attribute.
        config = self.__dict__.get("custom_config") or {}
        if name in config:
            return config[name]
        raise AttributeError(
            f"trainer_fn_args has no {name!r}; it has {', '.join(sorted(self))}. To add your own, "
            f"use TpuTrainer(custom_config={{{name!r}: ...}})"
        )

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.__dict__, **(self.__dict__.get("custom_config") or {})})

    def keys(self) -> list[str]:
        """Names all values, so that `**trainer_fn_args` works."""
        return list(self)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value, or the default where there is none."""
        return getattr(self, name, default)


def legacy_fn_args(fn_args: tfx.components.FnArgs, working_folder: str) -> LegacyFnArgs:
    """Makes a trainer_fn's arguments."""
    values = dict(vars(fn_args))
    for name in ("serving_model_dir", "eval_model_dir"):
        values[name] = os.path.join(working_folder, os.path.basename(values[name]))
    return LegacyFnArgs(**{**values, "model_run_dir": working_folder})
