"""Calls of what TensorFlow has deprecated, where that is what a name of the original stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def without_notice(function: Function) -> Function:
    """Returns a function of TensorFlow as it was before it was deprecated.

    TensorFlow logs the place of the call, which would be a line of ours that no user can change. Users who call the
    same function themselves are still told.
    """
    return inspect.unwrap(function)
