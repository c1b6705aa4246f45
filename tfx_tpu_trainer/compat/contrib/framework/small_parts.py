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
