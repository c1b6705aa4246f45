"""How far a number may be off, by chance alone, as resamplings tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Of a normal distribution, 95 % are so many standard deviations around its mean.
_NORMAL = 1.96


def margin_of(deviations: Sequence[float] | np.ndarray) -> float:
    """Returns half of the 95 % interval of a number."""
    return float(_NORMAL * np.std(deviations, ddof=1))
