"""Which columns hold dates, and in which order these give year, month and day.

`transform/dates.py` of a made project reads the same forms in TensorFlow.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import Literal

Order = Literal["year-first", "day-first", "month-first"]

_SEPARATOR = r"[-/. ]"
_TIME = (
    r"(?:[T ] *(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:[.,]\d+)?))?"
    r" *(?P<half>[AaPp][Mm])? *(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})?)?"
)
_YEAR, _SHORT_YEAR = r"(?P<year>\d{4})", r"(?P<year>\d{4}|\d{2})"
_MONTH, _DAY = r"(?P<month>\d{1,2})", r"(?P<day>\d{1,2})"
_PATTERNS: dict[Order, re.Pattern[str]] = {
    "year-first": re.compile(_SEPARATOR.join([_YEAR, _MONTH, _DAY]) + _TIME),
    "day-first": re.compile(_SEPARATOR.join([_DAY, _MONTH, _SHORT_YEAR]) + _TIME),
    "month-first": re.compile(_SEPARATOR.join([_MONTH, _DAY, _SHORT_YEAR]) + _TIME),
}
# POSIX: 69 to 99 are of the 20th century.
_FIRST_SHORT_YEAR = 69


@dataclasses.dataclass(frozen=True)
class Dates:
    """How a column's values are dates."""

    # The orders of year, month and day in which all values are dates; two if no value decides.
    orders: tuple[Order, ...]
    # The earliest day, in the first of these orders.
    first: datetime.date
    # Which of "year", "month", "weekday" and "hour" take several values.
    parts: tuple[str, ...]


class DateSearch:
    """Reads a column's values one by one while all of them are dates."""

    def __init__(self) -> None:
        self._possible: dict[Order, _Seen] = {order: _Seen() for order in _PATTERNS}
        self._dotted = False

    def add(self, text: str) -> None:
        """Reads one more value."""
        for order, seen in tuple(self._possible.items()):
            moment = read_date(text, order)
            if moment is None:
                del self._possible[order]
            else:
                seen.add(moment)
                self._dotted = self._dotted or "." in text[:6]

    def result(self) -> Dates | None:
        """How the values are dates; `None` if one is not, or there was none."""
        possible = {order: seen for order, seen in self._possible.items() if seen.first}
        # 03.04.2024 is the third of April wherever dates have dots.
        if self._dotted and "day-first" in possible:
            possible = {"day-first": possible["day-first"]}
        if not possible:
            return None
        first = next(iter(possible.values()))
        return Dates(tuple(possible), first.first or datetime.date.min, first.parts())


class _Seen:
    """The values that the parts of a column's dates take."""

    def __init__(self) -> None:
        self.first: datetime.date | None = None
        self._values: dict[str, set[int]] = {
            part: set() for part in ("year", "month", "weekday", "hour")
        }

    def add(self, moment: datetime.datetime) -> None:
        day = moment.date()
        self.first = min(self.first or day, day)
        self._values["year"].add(moment.year)
        self._values["month"].add(moment.month)
        self._values["weekday"].add(moment.weekday())
        self._values["hour"].add(moment.hour)

    def parts(self) -> tuple[str, ...]:
        return tuple(part for part, values in self._values.items() if len(values) > 1)


def read_date(text: str, order: Order) -> datetime.datetime | None:
    """Reads a date, with or without a time, as its clock showed it."""
    found = _PATTERNS[order].fullmatch(text.strip())
    if found is None:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:
        year += 1900 if year >= _FIRST_SHORT_YEAR else 2000
    hour = int(found["hour"] or 0)
    if found["half"]:
        hour = hour % 12 + 12 * (found["half"][0] in "Pp")
    second = float((found["second"] or "0").replace(",", "."))
    try:
        moment = datetime.datetime(
            year, int(found["month"]), int(found["day"]), hour, int(found["minute"] or 0)
        )
    except ValueError:
        return None
    # A leap second, as 23:59:60, is the next day's first.
    return moment + datetime.timedelta(seconds=second)
