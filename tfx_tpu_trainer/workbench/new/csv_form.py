"""How a CSV file is written: its encoding, its delimiter, its comments, and where its header is."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import itertools
from pathlib import Path

from tfx_tpu_trainer.workbench.new.errors import ScaffoldError

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DELIMITERS = (",", ";", "\t")
_NAMES = {";": "semicolons", "\t": "tabs"}
_ENCODINGS = {
    "utf-8-sig": "a byte order mark",
    "utf-16": "UTF-16",
    "cp1252": "Latin-1 text",
    "latin-1": "Latin-1 text",
}
# Enough to tell delimiters apart, also in a file with 10,000 columns.
_SAMPLE_LINES = 100
_BLOCK = 2**20


@dataclasses.dataclass(frozen=True)
class CsvForm:
    """How a CSV file is written.

    Attributes:
        encoding: The name of its encoding in Python.
        delimiter: What separates its values.
        header_line: The number of the line with the names, counted from 1.
        comments: Whether comment lines, which start with `#`, precede the header.
    """

    encoding: str = "utf-8"
    delimiter: str = ","
    header_line: int = 1
    comments: bool = False

    def differences(self) -> tuple[str, ...]:
        """Names what CsvExampleGen, which reads UTF-8 with commas and a header on top, can't read."""
        found = [_ENCODINGS.get(self.encoding), _NAMES.get(self.delimiter)]
        return tuple(each for each in [*found, "comment lines" if self.comments else None] if each)


def has_byte_order_mark(path: Path) -> bool:
    """Whether a file starts as text in UTF-8 or UTF-16 may, and no TFRecord file does."""
    with path.open("rb") as file:
        return file.read(3).startswith(tuple(_BYTE_ORDER_MARKS))


def find_form(path: Path, *, label: str) -> CsvForm:
    """Finds out how a CSV file is written."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        lines = list(itertools.islice(file, _SAMPLE_LINES))
    header_line = next(
        (
            number
            for number, line in enumerate(lines, start=1)
            if line.strip() and not _is_comment(line, label)
        ),
        None,
    )
    if header_line is None:
        raise ScaffoldError(f"{path} is empty: give a CSV file with a header and rows")
    return CsvForm(
        encoding,
        _delimiter(lines[header_line - 1 :], label),
        header_line,
        comments=any(line.startswith("#") for line in lines[: header_line - 1]),
    )


def _is_comment(line: str, label: str) -> bool:
    """Whether a line above the rows is a comment; a header that starts with `#` has the label."""
    return line.startswith("#") and not any(label in _values(line, each) for each in _DELIMITERS)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(3)
        for mark, encoding in _BYTE_ORDER_MARKS.items():
            if start.startswith(mark):
                return encoding
        # The rest of the world's files: Windows' Latin-1, or what has bytes that this leaves undefined.
        for encoding in ("utf-8", "cp1252"):
            file.seek(0)
            decoder = codecs.getincrementaldecoder(encoding)()
            try:
                while block := file.read(_BLOCK):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                continue
            return encoding
    return "latin-1"


def _delimiter(lines: list[str], label: str) -> str:
    """The delimiter that gives the header the label and most rows as many values as the header has names."""

    def fits(delimiter: str) -> tuple[bool, float, int]:
        records = [record for record in csv.reader(lines, delimiter=delimiter) if record]
        names = len(records[0])
        alike = sum(len(record) == names for record in records) / len(records)
        return label in records[0] and names > 1, alike if names > 1 else 0.0, names

    return max(_DELIMITERS, key=fits)


def _values(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])
