"""Which arguments a user's function takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")


def argument_names(function: Any) -> tuple[str, ...]:
    """Gives the names of the arguments that a caller can give.

    Args:
        function: A function, bound method, callable object or `functools.partial`. Arguments
            that a partial has bound, and `self` of a bound method, are not counted.

    Returns:
        The names, `*args` and `**kwargs` left out.

    Raises:
        TypeError: If it is not callable.
    """
    if not callable(function):
        raise TypeError(f"{function!r} is not callable.")
    if isinstance(function, functools.partial):
        names = argument_names(function.func)[len(function.args) :]
        return tuple(name for name in names if name not in (function.keywords or {}))
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in kinds)


def takes_varargs(function: Callable[..., Any]) -> bool:
    """Tells whether a function takes any number of positional arguments."""
    if isinstance(function, functools.partial):
        return takes_varargs(function.func)
    kinds = (parameter.kind for parameter in inspect.signature(function).parameters.values())
    return inspect.Parameter.VAR_POSITIONAL in kinds


def check_model_fn(model_fn: Callable[..., Any] | None, params: Mapping[str, Any] | None) -> None:
    """Checks a model_fn's arguments.

    Args:
        model_fn: The function.
        params: What will be given to it as `params`; `None` if nothing was given.

    Raises:
        TypeError: If it is not callable.
        ValueError: If it takes no `features`, takes an argument that it can't be given, or if
            there are params and it takes none.
    """
    names = argument_names(model_fn)
    if "features" not in names:
        raise ValueError(
            f"model_fn ({model_fn!r}) must include features argument; it takes {list(names)}."
        )
    if params and "params" not in names:
        raise ValueError(
            f"model_fn ({model_fn!r}) does not include params argument, but params "
            f"({params}) is passed to Estimator. Add a params argument to it."
        )
    unexpected = sorted(set(names) - set(MODEL_FN_ARGUMENTS))
    if unexpected:
        raise ValueError(
            f"model_fn ({model_fn!r}) has following not expected args: {unexpected}. It can take "
            f"{list(MODEL_FN_ARGUMENTS[:-1])}; bind others with functools.partial, or pass "
            "them in params."
        )
