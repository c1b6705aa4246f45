"""The small parts of `tf.contrib.framework`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
_logger = tf.get_logger()


def local_variable(
    initial_value: Any,
    validate_shape: bool = True,
    name: str | None = None,
    use_resource: bool | None = None,
) -> tf.Variable:
    """Makes a variable that no checkpoint has.

    Args:
        initial_value: Its first value.
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
    """Returns the name scope that ops are made in."""
    return v1.get_default_graph().get_name_scope()


def with_same_shape(expected_tensor: Any, tensor: Any) -> tf.Tensor:
    """Returns a tensor whose shape is checked to be that of another.

    Args:
        expected_tensor: The other.
        tensor: The tensor.
    """
    return tf.ensure_shape(tensor, expected_tensor.shape)


def deprecated(
    date: str | None, instructions: str, warn_once: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a decorator of functions that warns as they are called.

    Args:
        date: When the function goes: `YYYY-MM-DD`; `None` for some time.
        instructions: What to use instead.
        warn_once: Whether to warn with the first call only. Defaults to `True`.

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
    """Returns a condition's value, or `None` where it is known to the session only."""
    if condition is None:
        raise TypeError("A condition is a bool or a boolean tensor; got None.")
    if isinstance(condition, (tf.Tensor, tf.Variable)):
        if condition.dtype.base_dtype != tf.bool:
            raise TypeError(f"A condition is a bool or a boolean tensor; got {condition!r}.")
        value = tf.get_static_value(condition) if isinstance(condition, tf.Tensor) else None
        return None if value is None else bool(value)
    return bool(condition)


def smart_cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Calls one of two functions: when the graph is made if the condition is known, else in it.

    Args:
        pred: A bool, 0 or 1, or a boolean tensor.
        true_fn: Called if it is true.
        false_fn: Called if it is false.
        name: The name of the op. Defaults to `None`.

    Returns:
        What the function returns.

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
