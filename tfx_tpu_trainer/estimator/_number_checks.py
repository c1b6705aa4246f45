"""Checks numbers and lists among a program's arguments."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def holds(name: str, value: Any, condition: Callable[[Any], Any]) -> bool:
    """Returns whether a number meets a condition; NaN meets none."""
    try:
        return bool(condition(value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number; got {value!r}.") from None


def check_no_tensor(name: str, value: Any) -> None:
    """Rejects a tensor, whose value an estimator can't know before its graph runs."""
    if isinstance(value, tf.Tensor):
        raise TypeError(f"{name} must be a number; got {value!r}. Give its value, int(...).")


def check_positive(name: str, value: Any) -> None:
    """Checks that a number is `None` or positive."""
    check_no_tensor(name, value)
    if value is not None and not holds(name, value, lambda number: number > 0):
        raise ValueError(f"Must specify {name} > 0, given: {value}")


def check_is_number(name: str, value: Any) -> None:
    """Checks that a value is `None` or a number."""
    if value is not None:
        holds(name, value, lambda number: number > 0)


def as_items(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Returns the items of a list; none for `None`."""
    if isinstance(value, Iterable):
        return tuple(value)
    if value:
        kind = type(value).__name__
        raise TypeError(
            f"{kind!r} object is not iterable: {name} must be a list, such as {example}; got {value!r}."
        )
    return ()
