"""Finds out which arguments a user's function takes, and calls it with those."""

import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "self")

_Parameter = inspect.Parameter
_VARIABLE = (_Parameter.VAR_POSITIONAL, _Parameter.VAR_KEYWORD)


def argument_names(function: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a caller can give.

    Args:
        function: A function, bound method, callable object or `functools.partial`. Arguments
            that a partial has bound and `self` of a bound method do not count. Those of a
            decorated function count if its decorator passes them on, as `*args` or `**kwargs`,
            and names the function, as `functools.wraps` does.

    Returns:
        The names, without `*args` and `**kwargs`.

    Raises:
        TypeError: If `function` is not callable.
    """
    return tuple(each.name for each in _parameters(function) if each.kind not in _VARIABLE)


def positional_names(function: Any) -> tuple[str, ...]:
    """Returns the names of the arguments that a caller can give by position."""
    return tuple(
        each.name
        for each in _parameters(function)
        if each.kind not in (*_VARIABLE, _Parameter.KEYWORD_ONLY)
    )


def unexpected_arguments(function: Any, known: Collection[str]) -> list[str]:
    """Returns the sorted names of the arguments that are not known, without optional keyword-only ones."""
    return sorted(
        each.name
        for each in _parameters(function)
        if each.kind not in _VARIABLE
        and each.name not in known
        and (each.kind is not _Parameter.KEYWORD_ONLY or each.default is _Parameter.empty)
    )


def takes_varargs(function: Callable[..., Any]) -> bool:
    """Returns whether a function takes any number of positional arguments."""
    return _Parameter.VAR_POSITIONAL in _kinds(function)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a function takes an argument by name or in `**kwargs`."""
    return name in argument_names(function) or _Parameter.VAR_KEYWORD in _kinds(function)


def call_with(
    function: Callable[..., Any], available: Mapping[str, Any], *, required: Iterable[str] = ()
) -> Any:
    """Calls a function with the available arguments that it takes."""
    parameters = [each for each in _parameters(function) if each.kind not in _VARIABLE]
    names = {each.name for each in parameters}
    keywords = {name: value for name, value in available.items() if name in names}
    # model_fn(features, **kwargs) gets everything, since it must take labels somehow. A function
    # that names all required arguments gets no others, since its `**kwargs` may go to a function
    # without them.
    if _Parameter.VAR_KEYWORD in _kinds(function) and not names.issuperset(required):
        keywords = dict(available)
    positional = [
        index
        for index, each in enumerate(parameters)
        if each.kind is _Parameter.POSITIONAL_ONLY and each.name in keywords
    ]
    # A positional-only argument needs all those before it, with their defaults where nothing is given.
    leading = parameters[: positional[-1] + 1] if positional else []
    arguments = [keywords.pop(each.name, each.default) for each in leading]
    return function(*arguments, **keywords)


def check_model_fn(model_fn: Callable[..., Any] | None, params: Mapping[str, Any] | None) -> None:
    """Checks a model_fn's arguments."""
    if model_fn is None or not callable(model_fn):
        raise TypeError(f"model_fn must be callable, given: {model_fn!r}.")
    names = argument_names(model_fn)
    if not takes(model_fn, "features"):
        raise ValueError(
            f"model_fn ({model_fn!r}) must include features argument. It takes {list(names)}."
        )
    if params is not None and not takes(model_fn, "params"):
        raise ValueError(
            f"model_fn ({model_fn!r}) does not include params argument, but params "
            f"({params}) is passed to Estimator. Add a params argument to it."
        )
    unexpected = unexpected_arguments(model_fn, MODEL_FN_ARGUMENTS)
    if unexpected:
        raise ValueError(
            f"model_fn ({model_fn!r}) has following not expected args: {unexpected}. It can take "
            f"{list(MODEL_FN_ARGUMENTS[:-1])}; bind others with functools.partial, or pass "
            "them in params."
        )


def check_input_fn(input_fn: Any) -> None:
    """Checks that an input_fn is a function."""
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}.")


def as_params(params: Any) -> dict[str, Any]:
    """Copies params into a dict; `None` becomes an empty one."""
    try:
        return dict(params or {})
    except (TypeError, ValueError):
        raise TypeError(f"params must be a dict of name -> value, given: {params!r}.") from None


def _kinds(function: Any) -> set[Any]:
    return {each.kind for each in _parameters(function)}


def _parameters(function: Any) -> list[_Parameter]:
    """Returns the parameters of a function, in the order in which it takes them."""
    if not callable(function):
        raise TypeError(f"{function!r} is not callable.")
    if isinstance(function, functools.partial):
        return _left_open(function)
    own = _own_parameters(function)
    passes_on = any(each.kind in _VARIABLE for each in own)
    decorated = _decorated(function) if passes_on else None
    if decorated is None:
        return own
    return [*_with_passed_on(own, decorated), *(each for each in own if each.kind in _VARIABLE)]


def _with_passed_on(own: Sequence[_Parameter], decorated: Any) -> list[_Parameter]:
    """Returns a decorator's own named parameters and those that it passes on."""
    named = [each for each in own if each.kind not in _VARIABLE]
    names = {each.name for each in named}
    passed_on = [
        each
        for each in _parameters(decorated)
        if each.kind not in _VARIABLE and each.name not in names
    ]
    # A decorator with functools.wraps that passes its arguments on: def logged(features, **kwargs): # of
    # model_fn(features, labels, params) return model_fn(features, **kwargs) takes `labels` and `params`, too, by name.
    # With `*args` in place of `**kwargs` it takes them by position only, after its own.
    if any(each.kind is each.VAR_KEYWORD for each in own):
        # The decorator may add one that the caller leaves out, so none of them is required.
        return [*named, *(each.replace(kind=each.KEYWORD_ONLY, default=None) for each in passed_on)]
    keyword_only = [each for each in named if each.kind is each.KEYWORD_ONLY]
    positional = [each for each in (*named, *passed_on) if each.kind is not each.KEYWORD_ONLY]
    return [*(each.replace(kind=each.POSITIONAL_ONLY) for each in positional), *keyword_only]


def _left_open(function: functools.partial[Any]) -> list[_Parameter]:
    """Returns the parameters that a partial has not bound."""
    bound, left = len(function.args), []
    for each in _parameters(function.func):
        takes_position = each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        if takes_position and bound:
            bound -= 1
        # inspect.signature lists arguments that the partial binds by keyword, with their values as
        # defaults; a caller need not give these.
        elif each.name not in function.keywords or each.kind in _VARIABLE:
            left.append(each)
    return left


def _own_parameters(function: Any) -> list[_Parameter]:
    """Returns a function's own parameters, whatever it decorates."""
    try:
        return list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except ValueError:
        # A function in C may have no signature; it may also decorate a function that has one.
        variable = (("args", _Parameter.VAR_POSITIONAL), ("kwargs", _Parameter.VAR_KEYWORD))
        return [_Parameter(name, kind) for name, kind in variable]


def _decorated(function: Any) -> Any:
    """Returns the function that a decorator wraps, or `None`."""
    decorated = getattr(function, "__wrapped__", None)
    if decorated is None and not inspect.isroutine(function) and not isinstance(function, type):
        function = function.__call__
        decorated = getattr(function, "__wrapped__", None)
    if decorated is None or not callable(decorated):
        return None
    if inspect.ismethod(function) and not inspect.ismethod(decorated):
        return types.MethodType(decorated, function.__self__)
    return decorated
