"""The rows of a CSV file, as TFX's CsvExampleGen will read them: what it could not read is refused here."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tfx_tpu_trainer.scaffold.errors import ScaffoldError

# A wide file has wide lines, and the header of one that is refused must be read first.
_MOST_CHARACTERS = 10_000_000


def columns(path: Path) -> tuple[str, ...]:
    """The names in a CSV file's first line.

    Args:
        path: The file.

    Returns:
        The names, in their order.

    Raises:
        ScaffoldError: If there is no such line, it can't be read, or a name is missing or given twice.
    """
    header = next(_records(path), (0, []))[1]
    if not header:
        raise ScaffoldError(f"{path} is empty: give a CSV file with a header and rows")
    if header[0].startswith("\N{ZERO WIDTH NO-BREAK SPACE}"):
        raise ScaffoldError(
            f"{path} starts with a byte order mark, which CsvExampleGen takes for part of the "
            "first column's name: save the file as UTF-8 without one"
        )
    for place, name in enumerate(header, start=1):
        if not name.strip():
            raise ScaffoldError(
                f"{path}: column {place} has no name; name it, or leave it out (pandas: "
                "to_csv(..., index=False))"
            )
    twice = sorted({name for name in header if header.count(name) > 1}) if _repeats(header) else []
    if twice:
        raise ScaffoldError(f"{path}: two columns have the name {twice[0]!r}; rename one of them")
    return tuple(header)


def rows(path: Path) -> Iterator[Mapping[str, str | None]]:
    """The rows of a CSV file.

    Args:
        path: The file.

    Yields:
        Each row's values by column; `None` if there is none.

    Raises:
        ScaffoldError: If a row can't be read, or has not as many values as the header has names.
    """
    names = columns(path)
    records = _records(path)
    next(records)
    for line, record in records:
        if len(record) != len(names):
            raise ScaffoldError(
                f"{path}: line {line} has {len(record):,} values, but the header has "
                f"{len(names):,} names; correct the line"
            )
        yield {name: value or None for name, value in zip(names, record, strict=True)}


def _repeats(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def _line_of(path: Path) -> str:
    """In which line a file stops being UTF-8, in words: it is decoded in blocks of many lines."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return f" in line {number}"
    return ""


def _lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    """The lines of a file, each of them one for Beam as well, which knows LF and CR LF only."""
    before = ""
    for number, line in enumerate(file):
        # CR CR LF is a blank line for Python's reader, and the end of the same line for Beam's.
        if before.endswith("\r") and line != "\r\n":
            raise ScaffoldError(
                f"{path}: line {number} ends in CR alone, which CsvExampleGen does not take for the end of a line; "
                "end the lines in LF, for example with `tr '\\r' '\\n'`"
            )
        yield line
        before = line


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Each record with the number of its line; blank lines are none, as for CsvExampleGen."""
    before = csv.field_size_limit(_MOST_CHARACTERS)
    line = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(_lines(path, file))
            for record in reader:
                # Beam reads lines, and knows nothing of quotes.
                if reader.line_num > line + 1:
                    raise ScaffoldError(
                        f"{path}: a value in line {line + 1} contains a line break, which "
                        "CsvExampleGen can't read; replace it, or give a TFRecord file of "
                        "tf.Examples"
                    )
                line = reader.line_num
                if record:
                    yield line, record
    except UnicodeDecodeError as error:
        raise ScaffoldError(
            f"{path} is not UTF-8 (byte 0x{error.object[error.start]:02x}{_line_of(path)}): save it as UTF-8, "
            f"for example with `iconv -f latin1 -t utf-8`"
        ) from None
    except csv.Error as error:
        raise ScaffoldError(
            f"{path}: line {line + 1} can't be read ({error}); correct it"
        ) from None
    finally:
        csv.field_size_limit(before)
