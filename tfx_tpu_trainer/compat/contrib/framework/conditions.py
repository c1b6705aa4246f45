"""Branches that are chosen when the graph is made, where the condition is known by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


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
