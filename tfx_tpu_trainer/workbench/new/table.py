"""A table of the user's, as the decisions about its columns see it: plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from tfx_tpu_trainer.workbench.new.dates import Dates
from tfx_tpu_trainer.workbench.new.reading import Source

Type = Literal["integer", "float", "string"]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column as TFDV sees it.

    Attributes:
        name: Its name in the data.
        type: What Transform will get: 64-bit integers, floats or strings.
        missing: Rows without a value, or with one that is not a number where numbers stand.
        counts: Rows of each value, as text; `None` if there are too many values to tell apart.
        dates: How its values are dates; `None` if not all of them are.
        distinct: How many values it has; `None` if that was not counted.
        most_values: The most values in one row; more than 1 in TFRecords only.
        least: The least number; `None` for strings, as `greatest`, `mean` and `deviation`.
        greatest: The greatest number.
        mean: The numbers' mean.
        deviation: Their standard deviation.
    """

    name: str
    type: Type
    missing: int
    counts: Mapping[str, int] | None
    dates: Dates | None = None
    distinct: int | None = None
    most_values: int = 1
    least: float | None = None
    greatest: float | None = None
    mean: float | None = None
    deviation: float | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """The data as TFDV sees it.

    Attributes:
        source: The file.
        columns: The columns, in the data's order.
        schema: The schema that TFDV infers, as text.
    """

    source: Source
    columns: tuple[Column, ...]
    schema: str
