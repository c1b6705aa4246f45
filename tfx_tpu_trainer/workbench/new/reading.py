"""Reads a data file once, row by row: its columns, their values, and which of them are dates.

`transform/dates.py` of a made project reads the same forms of dates in TensorFlow.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tfx_tpu_trainer.workbench.new import csv_files
from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError, check_name

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
# As in POSIX, 69 to 99 are in the 20th century.
_FIRST_SHORT_YEAR = 69


@dataclasses.dataclass(frozen=True)
class Dates:
    """The form of a column's dates."""

    # The orders of year, month and day in which all values are dates; two if the values are ambiguous.
    orders: tuple[Order, ...]
    # The earliest day, in the first order.
    first: datetime.date
    # Those of "year", "month", "weekday" and "hour" that vary.
    parts: tuple[str, ...]


class DateSearch:
    """Reads a column's values one by one as long as all of them are dates."""

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
        """Returns the form of the dates; `None` if a value is not a date, or there is none."""
        possible = {order: seen for order, seen in self._possible.items() if seen.first}
        # Dates with dots are day-first: 03.04.2024 is the third of April.
        if self._dotted and "day-first" in possible:
            possible = {"day-first": possible["day-first"]}
        if not possible:
            return None
        first = next(iter(possible.values()))
        return Dates(tuple(possible), first.first or datetime.date.min, first.parts())


class _Seen:
    """The values of a column's date parts."""

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
    """Reads a date, with or without a time, in its own time zone."""
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
    # A leap second, as 23:59:60, counts as the next second.
    return moment + datetime.timedelta(seconds=second)


if TYPE_CHECKING:
    import tensorflow as tf

MOST_COLUMNS = 500
"""Largest number of columns for which Transform's and the model's graphs are built within minutes."""

FEWEST_ROWS = 20
"""Smallest number of rows of which a third, the eval split, is never empty."""

MOST_COUNTED = 10_000
"""Largest number of distinct values that are counted in a column."""

# The most complete of this many rows is shown.
_ROWS_TO_CHOOSE_FROM = 50

_SHOWN = 8
_RECORD_ENDINGS = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")

Row = Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of a column."""

    # Rows without a value.
    missing: int
    # Value, as text -> rows; `None` for more than `MOST_COUNTED` values.
    counts: Mapping[str, int] | None
    # The form of its dates; `None` if not all values are dates.
    dates: Dates | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A readable file of rows.

    Attributes:
        path: The file, absolute: the user's, or a copy that CsvExampleGen can read.
        kind: Whether TFX reads it with CsvExampleGen or with ImportExampleGen.
        rows: The number of rows.
        columns: The values of each column, by name.
        example: The most complete one of the first rows.
        copied_for: The properties of the user's file that CsvExampleGen can't read; none if `path` is that file.
    """

    path: Path
    kind: Literal["csv", "tfrecord"]
    rows: int
    columns: Mapping[str, Values]
    example: Row
    copied_for: tuple[str, ...] = ()


def read_source(path: Path, *, label: str, scratch: Path) -> Source:
    """Reads and counts all rows of a file; rejects data from which no project can be made.

    A CSV file that CsvExampleGen can't read is copied to `scratch` in a readable form.
    """
    path = path.absolute()
    check_name(path)
    if not path.is_file():
        raise ScaffoldError(
            f"{path} is not a file: give a CSV file, or a TFRecord file of tf.Examples"
        )
    if any(letter in path.name for letter in "*?["):
        raise ScaffoldError(f"{path}: TFX would read the name as a pattern; rename the file")
    try:
        if is_record_file(path):
            return _count(path, "tfrecord", (), label, lambda: record_rows(path))
        return _read_csv(path, label, scratch)
    except OSError as error:
        raise ScaffoldError(
            f"{path} can't be read ({error.strerror}): give a file that you may read"
        ) from None


def _read_csv(path: Path, label: str, scratch: Path) -> Source:
    form = csv_files.find_form(path, known={label})
    # Names are checked before the rows are read.
    names = csv_files.columns(path, form)
    _check_columns(path, names, label)
    found = csv_files.find_differences(path, form)
    if not found.names:
        return _count(path, "csv", names, label, lambda: csv_files.rows(path, form))
    copy = scratch / f"{path.stem}.csv"
    csv_files.write_plain(path, form, found.decimal_commas, copy)
    plain = csv_files.CsvForm()
    counted = _count(
        path,
        "csv",
        csv_files.columns(copy, plain),
        label,
        lambda: csv_files.rows(copy, plain),
    )
    return dataclasses.replace(counted, path=copy, copied_for=found.names)


def is_record_file(path: Path) -> bool:
    """Returns whether a file holds TFRecords, by its name or first bytes."""
    if path.name.lower().endswith(_RECORD_ENDINGS):
        return True
    if csv_files.has_byte_order_mark(path):
        return False
    # A record begins with its length in eight bytes, most of them 0; text has no zero bytes.
    with path.open("rb") as file:
        return b"\0" in file.read(8)


def _count(
    path: Path,
    kind: Literal["csv", "tfrecord"],
    names: Iterable[str],
    label: str,
    rows: Callable[[], Iterator[Row]],
) -> Source:
    """Counts each column's values, those of `names` first."""
    counts: dict[str, dict[str, int] | None] = {name: {} for name in names}
    present = dict.fromkeys(counts, 0)
    dates = {name: DateSearch() for name in counts}
    number = 0
    example: Row = {}
    for row in rows():
        number += 1
        if number <= _ROWS_TO_CHOOSE_FROM:
            example = max(example, row, key=_values_in)
        for name, value in row.items():
            if name not in present:
                counts[name], present[name], dates[name] = {}, 0, DateSearch()
            if value is None:
                continue
            present[name] += 1
            dates[name].add(value)
            counted = counts[name]
            if counted is None:
                continue
            counted[value] = counted.get(value, 0) + 1
            if len(counted) > MOST_COUNTED:
                counts[name] = None
    _check_columns(path, tuple(counts), label)
    if number < FEWEST_ROWS:
        raise ScaffoldError(
            f"{path} has {number} row{'s' if number != 1 else ''}, but a third is kept for the "
            f"evaluation: give at least {FEWEST_ROWS}"
        )
    return Source(
        path=path,
        kind=kind,
        rows=number,
        columns={
            name: Values(number - present[name], counts[name], dates[name].result())
            for name in counts
        },
        example=example,
    )


def _values_in(row: Row) -> int:
    return sum(value is not None for value in row.values())


def _check_columns(path: Path, names: tuple[str, ...], label: str) -> None:
    if label not in names:
        shown = ", ".join(map(repr, names[:_SHOWN])) + ", ..." * (len(names) > _SHOWN)
        raise ScaffoldError(
            f"{path} has no column {label!r}, only {shown or 'an empty header'}: name one of them as the label"
        )
    if len(names) > MOST_COLUMNS:
        raise ScaffoldError(
            f"{path} has {len(names):,} columns, but a scaffolded model takes at most "
            f"{MOST_COLUMNS}: keep those that are informative about the label"
        )
    if len(names) < 2:
        raise ScaffoldError(
            f"{path} has no column other than the label {label!r}: add columns to predict it from "
            "(a CSV's values are separated by commas, semicolons or tabs)"
        )


def record_rows(path: Path) -> Iterator[Row]:
    """Reads a TFRecord file's rows; imports TensorFlow here, so a wrong CSV file is reported at once."""
    import tensorflow as tf

    compression = "GZIP" if path.name.endswith(".gz") else ""
    records = tf.data.TFRecordDataset([str(path)], compression_type=compression)
    try:
        for number, record in enumerate(records.as_numpy_iterator(), start=1):
            yield {name: _text(feature) for name, feature in _features(record, path, number)}
    except tf.errors.DataLossError:
        raise ScaffoldError(
            f"{path} is not a TFRecord file, or is damaged: give one of tf.Examples, or a CSV file"
        ) from None


def _features(record: bytes, path: Path, number: int) -> list[tuple[str, tf.train.Feature]]:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        example = tf.train.Example.FromString(record)
    except DecodeError:
        example = tf.train.Example()
    if record and not example.features.feature:
        raise ScaffoldError(
            f"{path}: record {number:,} is not a tf.Example; write a tf.train.Example for each row"
        )
    return list(example.features.feature.items())


def _text(feature: tf.train.Feature) -> str | None:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind).value if kind else ()
    if not values:
        return None
    # Bytes that are not text are shown escaped, and count as one value.
    return (
        values[0].decode("utf-8", errors="backslashreplace")
        if kind == "bytes_list"
        else repr(values[0])
    )
