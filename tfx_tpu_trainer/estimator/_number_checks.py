"""Checks of numbers that programs give, and of lists: steps, seconds, sizes, heads, columns."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def holds(name: str, value: Any, condition: Callable[[Any], Any]) -> bool:
    """Tells whether a number meets a condition, which NaN never does."""
    try:
        return bool(condition(value))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number; got {value!r}.") from None


def check_no_tensor(name: str, value: Any) -> None:
    """Checks that a number is not a tensor, whose value is unknown in an estimator's graph."""
    if isinstance(value, tf.Tensor):
        raise TypeError(f"{name} must be a number; got {value!r}. Give its value, int(...).")


def check_positive(name: str, value: Any) -> None:
    """Checks a number that may be left out."""
    check_no_tensor(name, value)
    if value is not None and not holds(name, value, lambda number: number > 0):
        raise ValueError(f"Must specify {name} > 0, given: {value}")


def check_is_number(name: str, value: Any) -> None:
    """Checks that a value, which may be left out, is a number."""
    if value is not None:
        holds(name, value, lambda number: number > 0)


def as_items(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Returns the items of a list; none where it is left out."""
    if isinstance(value, Iterable):
        return tuple(value)
    if value:
        kind = type(value).__name__
        raise TypeError(
            f"{kind!r} object is not iterable: {name} must be a list, such as {example}; got {value!r}."
        )
    return ()
