"""From costs at several sizes to the exponent by which they grow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

LIMIT = 1.1
"""The exponent from which on something grows faster than linear: sorting's n log n is below it."""

# A part of the cost at the largest size: what grows less than this may be noise.
_FLAT = 0.1
_EXPONENTS = np.arange(0.05, 3.001, 0.01)
_RESAMPLES = 300


@dataclasses.dataclass(frozen=True)
class Growth:
    """How a cost grows with a size: as `fixed + c * size ** exponent`.

    Attributes:
        exponent: The slope, where both are drawn by their logarithms, of what the cost is beside its
            fixed part; 0 where it is flat.
        low: Lower end of its 95 % interval, by bootstrap over the rounds; NaN where there was one.
        high: Upper end.
        each: What one more costs, between the smallest size and the largest.
    """

    exponent: float
    low: float
    high: float
    each: float

    @property
    def verdict(self) -> str:
        """`flat`, `linear or less`, or `faster than linear` where all of the interval is above `LIMIT`.

        One round is not an interval: what it finds above the limit is `open`.
        """
        if self.exponent == 0:
            return "flat"
        if math.isnan(self.low) and self.exponent > LIMIT:
            return "open"
        return "faster than linear" if self.low > LIMIT else "linear or less"


def growth_of(costs: Mapping[int, Sequence[float]]) -> Growth:
    """Finds how a cost grows."""
    sizes = np.array(sorted(costs), float)
    if len(sizes) < 3:
        raise ValueError(
            f"an exponent needs three sizes, got {sorted(costs)}: measure more of them"
        )
    rounds = [np.array(costs[int(size)], float) for size in sizes]
    medians = np.array([np.median(values) for values in rounds])
    low = high = math.nan
    if min(map(len, rounds)) > 1:
        generator = np.random.default_rng(1)
        found = [
            _exponent(sizes, np.array([np.median(generator.choice(v, len(v))) for v in rounds]))
            for _ in range(_RESAMPLES)
        ]
        low, high = np.percentile(found, [2.5, 97.5])
    each = (medians[-1] - medians[0]) / (sizes[-1] - sizes[0])
    return Growth(_exponent(sizes, medians), float(low), float(high), float(each))


def _exponent(sizes: np.ndarray, costs: np.ndarray) -> float:
    """The exponent whose curve has the smallest relative errors; neither part may be negative."""
    if costs[-1] - costs[0] < _FLAT * costs[-1]:
        return 0.0
    # For each exponent the best `fixed` and `c`, by least squares of fixed/cost + c*power/cost - 1.
    powers = (sizes / sizes[-1]) ** _EXPONENTS[:, np.newaxis]
    ones, grown = np.broadcast_to(1 / costs, powers.shape), powers / costs
    a, b, d = (ones * ones).sum(1), (ones * grown).sum(1), (grown * grown).sum(1)
    p, q = ones.sum(1), grown.sum(1)
    determinant = np.maximum(a * d - b * b, 1e-300)
    fixed, factor = (p * d - q * b) / determinant, (a * q - b * p) / determinant
    alone = (fixed < 0) | (factor < 0)
    fixed, factor = np.where(alone, 0.0, fixed), np.where(alone, q / d, factor)
    errors = (fixed[:, None] * ones + factor[:, None] * grown - 1) ** 2
    return float(_EXPONENTS[errors.sum(1).argmin()])
