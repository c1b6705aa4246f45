"""Reads CSV files: their form, their rows, and a copy that TFX's CsvExampleGen can read."""

import codecs
import csv
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError

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

# Enough to distinguish delimiters, even in a file with 10,000 columns.
_SAMPLE_LINES = 100

_BLOCK = 2**20
# A wide file has wide lines, and the header of a rejected one must be read first.
_MOST_CHARACTERS = 10_000_000

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_INTEGER = re.compile(r"[+-]?\d+")
_LINE_BREAKS = re.compile(r"[\r\n]+")


@dataclasses.dataclass(frozen=True)
class CsvForm:
    """The form of a CSV file."""

    encoding: str = "utf-8"
    delimiter: str = ","
    # The number of the line with the names, counted from 1.
    header_line: int = 1
    # Whether comment lines, which start with `#`, precede the header.
    comments: bool = False

    def differences(self) -> tuple[str, ...]:
        """Names the properties that CsvExampleGen, which reads UTF-8 with commas and a header on top, can't read."""
        found = [_ENCODINGS.get(self.encoding), _NAMES.get(self.delimiter)]
        return tuple(each for each in [*found, "comment lines" if self.comments else None] if each)


@dataclasses.dataclass(frozen=True)
class Differences:
    """The properties of a CSV file that CsvExampleGen can't read."""

    # Nouns, such as `("semicolons", "line breaks in values")`; none if it can read the file.
    names: tuple[str, ...]
    # The columns, by position, whose numbers have decimal commas.
    decimal_commas: tuple[int, ...]


def has_byte_order_mark(path: Path) -> bool:
    """Returns whether a file begins like text in UTF-8 or UTF-16, and unlike any TFRecord file."""
    with path.open("rb") as file:
        return file.read(3).startswith(tuple(_BYTE_ORDER_MARKS))


def find_form(path: Path, *, known: Collection[str]) -> CsvForm:
    """Finds the form of a CSV file whose header has these names, or some of them."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        lines = list(itertools.islice(file, _SAMPLE_LINES))
    header_line = next(
        (
            number
            for number, line in enumerate(lines, start=1)
            if line.strip() and not _is_comment(line, known)
        ),
        None,
    )
    if header_line is None:
        raise ScaffoldError(f"{path} is empty: give a CSV file with a header and rows")
    return CsvForm(
        encoding,
        _delimiter(lines[header_line - 1 :], known),
        header_line,
        comments=any(line.startswith("#") for line in lines[: header_line - 1]),
    )


def _is_comment(line: str, known: Collection[str]) -> bool:
    """Returns whether a line above the rows is a comment; a header that starts with `#` has known names."""
    found = any(name in known for each in _DELIMITERS for name in _values(line, each))
    return line.startswith("#") and not found


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(3)
        for mark, encoding in _BYTE_ORDER_MARKS.items():
            if start.startswith(mark):
                return encoding
        # Windows' Latin-1, as in many files, and then a form that accepts the bytes that it leaves undefined.
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


def _delimiter(lines: list[str], known: Collection[str]) -> str:
    """Returns the delimiter that gives the header known names and most rows as many values as the header has names."""

    # Compared in this order: the known names in a header with further ones; the share of rows with as many values as
    # the header; the number of names. Under "net;tax", "1,5;0,3" has three values between commas, but the header has
    # one.
    def fits(delimiter: str) -> tuple[int, float, int]:
        records = [record for record in csv.reader(lines, delimiter=delimiter) if record]
        names = len(records[0])
        alike = sum(len(record) == names for record in records) / len(records)
        found = sum(name in known for name in records[0])
        return found if names > 1 else 0, alike if names > 1 else 0.0, names

    return max(_DELIMITERS, key=fits)


def _values(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def columns(path: Path, form: CsvForm) -> tuple[str, ...]:
    """Reads the names in a CSV file's header."""
    header = next(_records(path, form), (0, []))[1]
    for place, name in enumerate(header, start=1):
        if not name.strip():
            raise ScaffoldError(
                f"{path}: column {place} has no name; name it, or leave it out (pandas: "
                "to_csv(..., index=False))"
            )
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise ScaffoldError(f"{path}: two columns have the name {twice[0]!r}; rename one of them")
    return tuple(header)


def rows(path: Path, form: CsvForm) -> Iterator[Mapping[str, str | None]]:
    """Reads the rows of a CSV file."""
    names = columns(path, form)
    records = _records(path, form)
    next(records)
    for line, record in records:
        if len(record) != len(names):
            raise ScaffoldError(
                f"{path}: line {line} has {len(record):,} values, but the header has "
                f"{len(names):,} names; correct the line"
            )
        yield {name: value or None for name, value in zip(names, record, strict=True)}


def find_differences(path: Path, form: CsvForm) -> Differences:
    """Reads a file once, and finds the properties that CsvExampleGen can't read."""
    found = dict.fromkeys(form.differences())
    names = columns(path, form)
    # With commas as delimiters, a decimal comma would have to be quoted, and is then text.
    numbers = set() if form.delimiter == "," else set(names)
    with_commas: set[str] = set()
    for row in rows(path, form):
        for name, value in row.items():
            if value is None:
                continue
            if _LINE_BREAKS.search(value):
                found["line breaks in values"] = None
            if name in numbers and _DECIMAL_COMMA.fullmatch(value):
                with_commas.add(name)
            elif name in numbers and not _INTEGER.fullmatch(value):
                numbers.discard(name)
    if any(_LINE_BREAKS.search(name) for name in names):
        found["line breaks in names"] = None
    if _has_lone_returns(path, form):
        found["lines that end in CR alone"] = None
    commas = tuple(place for place, name in enumerate(names) if name in numbers & with_commas)
    if commas:
        found["decimal commas"] = None
    return Differences(tuple(found), commas)


def write_plain(path: Path, form: CsvForm, commas: Iterable[int], copy: Path) -> None:
    """Writes a copy that CsvExampleGen can read: UTF-8, commas, a header on top, a record on each line."""
    places = tuple(commas)
    with copy.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(on_one_line, columns(path, form)))
        for row in rows(path, form):
            values = [on_one_line(value or "") for value in row.values()]
            for place in places:
                values[place] = with_point(values[place])
            writer.writerow(values)


def on_one_line(text: str) -> str:
    """Returns a name or a value with spaces in place of line breaks."""
    return _LINE_BREAKS.sub(" ", text)


def with_point(text: str) -> str:
    """Returns a number with a decimal point in place of a decimal comma."""
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text


def _has_lone_returns(path: Path, form: CsvForm) -> bool:
    """Returns whether a line ends in CR alone, which does not end a line for Beam; CR CR LF ends one line for it."""
    before = ""
    with path.open(encoding=form.encoding, newline="") as file:
        for line in file:
            if before.endswith("\r") and line != "\r\n":
                return True
            before = line
    return before.endswith("\r")


def _records(path: Path, form: CsvForm) -> Iterator[tuple[int, list[str]]]:
    """Yields each record, the header first, with the number of its first line; skips blank lines and comments."""
    before = csv.field_size_limit(_MOST_CHARACTERS)
    line = 0
    try:
        with path.open(encoding=form.encoding, newline="") as file:
            lines = (
                # A comment counts as a line, so messages have the file's own line numbers.
                "\n"
                if place < form.header_line or (form.comments and text.startswith("#"))
                else text
                for place, text in enumerate(file, start=1)
            )
            reader = csv.reader(lines, delimiter=form.delimiter)
            for record in reader:
                first, line = line + 1, reader.line_num
                if record:
                    yield first, record
    except csv.Error as error:
        raise ScaffoldError(
            f"{path}: line {line + 1} can't be read ({error}); correct it"
        ) from None
    finally:
        csv.field_size_limit(before)
