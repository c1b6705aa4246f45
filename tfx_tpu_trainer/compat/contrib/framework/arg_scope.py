"""Sets functions' default arguments for a block of code; provides small functions of `tf.contrib.framework`.

The semantics are those of TensorFlow 1.15.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

v1 = tf.compat.v1

Scope = dict[str, dict[str, Any]]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# A stack: the last scope is in effect, and includes the settings of the scopes around it. Changes are made on a copy,
# so a named scope (`with arg_scope(...) as scope`) stays unchanged and can be entered again.
_scopes: list[Scope] = [{}]
_arguments_of: dict[str, tuple[str, ...]] = {}


def add_arg_scope(func: _Function) -> _Function:
    """Makes a function take its defaults from the `arg_scope` that it is called in.

    Args:
        func: The function, or a class for its constructor.

    Returns:
        A function with the same arguments.
    """

    # AutoGraph converts the functions that a Keras layer calls, but never converted contrib's. Layers that read their
    # `locals()` rely on that, and converting them takes seconds.
    @tf.autograph.experimental.do_not_convert
    @functools.wraps(func)
    def with_defaults(*args: Any, **kwargs: Any) -> Any:
        defaults = _scopes[-1].get(_key(with_defaults))
        return func(*args, **({**defaults, **kwargs} if defaults else kwargs))

    # The function's key in an `arg_scope`, since two functions may have the same name.
    with_defaults._key_op = f"{func.__module__}.{func.__qualname__}"
    _arguments_of[_key(with_defaults)] = _with_defaults(func)
    return with_defaults


@contextlib.contextmanager
def arg_scope(
    list_ops_or_scope: Sequence[Callable[..., Any]] | Scope, **kwargs: Any
) -> Iterator[Scope]:
    """Sets default arguments of functions inside a `with`; nested blocks add to the outer ones.

    Args:
        list_ops_or_scope: The functions, each made by `add_arg_scope`; or a scope from an earlier `arg_scope`, to enter
            it again.
        **kwargs: The arguments; none with a scope.

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


_logger = tf.get_logger()


def local_variable(
    initial_value: Any,
    validate_shape: bool = True,
    name: str | None = None,
    use_resource: bool | None = None,
) -> tf.Variable:
    """Makes a variable that is not saved in checkpoints.

    Args:
        initial_value: Its initial value.
        validate_shape: Whether it keeps that shape. Defaults to `True`.
        name: Its name. Defaults to `None`.
        use_resource: Whether it is a resource variable. Defaults to `None`.

    Returns:
        The variable.
    """
    return v1.Variable(
        initial_value,
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
        validate_shape=validate_shape,
        use_resource=use_resource,
        name=name,
    )


def get_name_scope() -> str:
    """Returns the current name scope."""
    return v1.get_default_graph().get_name_scope()


def with_same_shape(expected_tensor: Any, tensor: Any) -> tf.Tensor:
    """Checks that a tensor has the shape of another, and returns it.

    Args:
        expected_tensor: A tensor of the expected shape.
        tensor: The tensor to check.
    """
    return tf.ensure_shape(tensor, expected_tensor.shape)


def deprecated(
    date: str | None, instructions: str, warn_once: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a decorator that warns when a function is called.

    Args:
        date: When the function will be removed, `YYYY-MM-DD`; `None` if that is open.
        instructions: What to use instead.
        warn_once: Whether to warn at the first call only. Defaults to `True`.

    Returns:
        The decorator.

    Raises:
        ValueError: If there are no instructions.
    """
    if not instructions:
        raise ValueError("deprecated takes instructions: what to use instead.")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        warned = False

        @functools.wraps(function)
        def warning(*args: Any, **kwargs: Any) -> Any:
            nonlocal warned
            if not (warned and warn_once):
                warned = True
                when = f"after {date}" if date else "in a future version"
                _logger.warning(
                    "%s is deprecated and will be removed %s. %s",
                    function.__qualname__,
                    when,
                    instructions,
                )
            return function(*args, **kwargs)

        return warning

    return decorate


def static_value(condition: Any) -> bool | None:
    """Returns a condition's value, or `None` if only a session can compute it."""
    if condition is None:
        raise TypeError("A condition must be a bool or a boolean tensor; got None.")
    if isinstance(condition, (tf.Tensor, tf.Variable)):
        if condition.dtype.base_dtype != tf.bool:
            raise TypeError(f"A condition must be a bool or a boolean tensor; got {condition!r}.")
        value = tf.get_static_value(condition) if isinstance(condition, tf.Tensor) else None
        return None if value is None else bool(value)
    return bool(condition)


def smart_cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Calls one of two functions: at once if the condition is known, else in the graph.

    Args:
        pred: A bool, 0 or 1, or a boolean tensor.
        true_fn: Called if it is true.
        false_fn: Called if it is false.
        name: The name of the op. Defaults to `None`.

    Returns:
        The function's result.

    Raises:
        TypeError: If a function can't be called, or `pred` is not a condition.
    """
    for function in (true_fn, false_fn):
        if not callable(function):
            raise TypeError(f"smart_cond takes two functions; got {function!r}.")
    value = static_value(pred)
    if value is None:
        return v1.cond(pred, true_fn=true_fn, false_fn=false_fn, name=name)
    return true_fn() if value else false_fn()  # type: ignore[misc]
