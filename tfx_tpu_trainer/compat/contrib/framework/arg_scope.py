"""Default arguments of functions, set for a block of code.

The semantics are those of `tf.contrib.framework.arg_scope` of TensorFlow 1.15.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Scope = dict[str, dict[str, Any]]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# A stack: the last scope holds what is in effect, with all that the ones around it set. A scope is copied when it is
# changed, so that one that was given a name (`with arg_scope(...) as scope`) stays as it was, and can hold again later.
_scopes: list[Scope] = [{}]
_arguments_of: dict[str, tuple[str, ...]] = {}


def add_arg_scope(func: _Function) -> _Function:
    """Makes a function take its defaults from the `arg_scope` that it is called in.

    Args:
        func: The function, or a class: then its constructor.

    Returns:
        A function with the same arguments.
    """

    @functools.wraps(func)
    def with_defaults(*args: Any, **kwargs: Any) -> Any:
        defaults = _scopes[-1].get(_key(with_defaults))
        return func(*args, **({**defaults, **kwargs} if defaults else kwargs))

    # What `arg_scope` knows the function by: two functions may have the same name.
    with_defaults._key_op = f"{func.__module__}.{func.__qualname__}"  # type: ignore[attr-defined]
    _arguments_of[_key(with_defaults)] = _with_defaults(func)
    return with_defaults  # type: ignore[return-value]


@contextlib.contextmanager
def arg_scope(
    list_ops_or_scope: Sequence[Callable[..., Any]] | Scope, **kwargs: Any
) -> Iterator[Scope]:
    """Sets default arguments of functions inside a `with`; a block within another adds to it.

    Args:
        list_ops_or_scope: The functions, each made by `add_arg_scope`; or a scope that an earlier
            `arg_scope` gave, which then holds again.
        **kwargs: The arguments. None with a scope.

    Yields:
        The scope.

    Raises:
        ValueError: If a function is not made by `add_arg_scope`, or both a scope and arguments are
            given.
        TypeError: If the first argument is neither.
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError(
                "arg_scope takes a scope or arguments, not both; leave out "
                f"{', '.join(sorted(kwargs))}, or give a list of functions."
            )
        scope = dict(list_ops_or_scope)
    elif isinstance(list_ops_or_scope, (list, tuple)):
        scope = dict(_scopes[-1])
        for function in list_ops_or_scope:
            key = _key(function)
            if key not in _arguments_of:
                raise ValueError(
                    f"{key} takes no defaults from an arg_scope; decorate it with @add_arg_scope."
                )
            scope[key] = {**scope.get(key, {}), **kwargs}
    else:
        raise TypeError(
            f"arg_scope takes a list or tuple of functions, or a scope; got {list_ops_or_scope!r}."
        )
    _scopes.append(scope)
    try:
        yield scope
    finally:
        _scopes.pop()


def current_arg_scope() -> Scope:
    """Returns the scope in effect."""
    return _scopes[-1]


def _key(function: Callable[..., Any]) -> str:
    return getattr(function, "_key_op", str(function))


def _with_defaults(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(each.name for each in parameters if each.default is not each.empty)
