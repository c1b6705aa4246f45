"""Matrices of which `make test` runs a part, and `make test-all` the whole."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def mostly_swept(name: str | Sequence[str], values: Iterable[Any], *, kept: Collection[Any]) -> Any:
    """Parametrizes with values of which `make test` runs some only.

    Args:
        name: The test's argument, or several.
        values: All its values; a tuple each for several arguments.
        kept: Those that `make test` runs: one for each way through the code.

    Returns:
        The mark.
    """
    several = not isinstance(name, str)
    cells = [
        value
        if value in kept
        else pytest.param(*(value if several else (value,)), marks=pytest.mark.sweep)
        for value in values
    ]
    return pytest.mark.parametrize(name, cells)
