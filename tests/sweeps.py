"""Matrices of which `make test` runs a part, and `make test-all` the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_swept(name: str, values: Iterable[Any], *, kept: Collection[Any]) -> Any:
    """Parametrizes with values of which `make test` runs some only.

    Args:
        name: The test's argument.
        values: All its values.
        kept: Those that `make test` runs: one for each way through the code.

    Returns:
        The mark.
    """
    values = [
        value if value in kept else pytest.param(value, marks=pytest.mark.sweep) for value in values
    ]
    return pytest.mark.parametrize(name, values)
