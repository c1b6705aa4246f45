"""Slice keys: how a slice of the eval split is named, in files, charts and sentences."""

from __future__ import annotations

SliceValue = str | int | float

SliceKey = tuple[tuple[str, SliceValue], ...]
"""A slice as TFMA writes it: pairs of a feature and a value, in the order of the names."""

OVERALL: SliceKey = ()
"""The whole eval split."""

OTHER_VALUE = "__OTHER__"
"""Stands in a slice key for all values of a feature that were too many to be measured one by one."""


def slice_name(key: SliceKey) -> str:
    """Names a slice as TFMA's views do: `payment_type:Cash`, `day_X_hour:1_X_17`, `Overall`."""
    if not key:
        return "Overall"
    names, values = zip(*key)
    return "_X_".join(names) + ":" + "_X_".join(map(str, values))


def slice_in_words(key: SliceKey) -> str:
    """Names a slice for a sentence: `payment_type=Cash, hour=17`; '' is the whole split."""
    return ", ".join(f"{name}={value}" for name, value in key)
