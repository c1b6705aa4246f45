"""Decides how a project uses each column (number, word, label, or not at all) and how long its model trains.

Nothing here depends on TensorFlow: the decisions are based on TFDV's statistics.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Literal

from tfx_tpu_trainer.workbench.new.arguments import Kind, ScaffoldError
from tfx_tpu_trainer.workbench.new.measuring import Column, Table
from tfx_tpu_trainer.workbench.new.reading import Order

Task = Literal["regression", "classification"]

MOST_CLASSES = 100
"""Largest number of label values that still count as classes."""

# An integer label with more distinct values is a quantity, unless the task is given.
_MOST_INTEGER_CLASSES = 20
# A column in which most rows have a unique word identifies rows: new rows share none of its words.
_MOST_WORDS_PER_ROW = 0.5
# Integers are counted up to this many distinct values.
_MANY_VALUES = 10_001
# An integer column with a name such as user_id or userId has identifiers instead of quantities.
_ID_NAME = re.compile(r"(^|[^A-Za-z])[Ii][Dd]$|[a-z]I[Dd]$")
_MOST_WORDS, _FEWEST_WORDS, _ROWS_PER_WORD = 5_000, 20, 20
_MOST_CROSSED_WORDS = 100
_MOST_CROSSES = 3
_EVAL_SHARE = 1 / 3


@dataclasses.dataclass(frozen=True)
class Feature:
    """A column that the model reads."""

    name: str
    # The base of the names of features and variables.
    key: str
    missing: bool
    # The number of distinct values; `None` if too many were found to count.
    values: int | None


@dataclasses.dataclass(frozen=True)
class DateFeature:
    """A column of dates, which the model reads as numbers."""

    name: str
    # The base of the names of features and variables.
    key: str
    missing: bool
    # The order of year, month and day.
    order: Order
    # The day from which days are counted, such as 2024-03-01.
    first_day: str
    # Those of "year", "month", "weekday" and "hour" that vary, and so become numbers as well.
    parts: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Words:
    """Limits the words of a column that get their own ids."""

    # The largest number of ids.
    most: int
    # The smallest number of training rows with a word.
    fewest_rows: int


@dataclasses.dataclass(frozen=True)
class Label:
    """The column to predict."""

    name: str
    # Its name in Transform's output.
    key: str
    # Its values, in the order of their ids; empty for a regression.
    classes: tuple[str | int, ...]
    # Whether the data's classes are integers.
    integers: bool
    # The mean, for a regression.
    mean: float
    deviation: float
    # The loss of the constant model, which predicts the classes' frequencies or the mean.
    loss_to_beat: float
    # The share of the rows that each class has; empty for a regression.
    shares: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Training:
    """The settings of the model's training."""

    batch_size: int
    steps: int
    eval_every_steps: int
    hidden_units: tuple[int, ...]
    # The dropout rate.
    dropout: float


@dataclasses.dataclass(frozen=True)
class Decisions:
    """All decisions for a project."""

    label: Label
    # Columns that are scaled and bucketed.
    numbers: tuple[Feature, ...]
    # Columns that become numbers of days and calendar parts.
    dates: tuple[DateFeature, ...]
    # Columns that get ids from a vocabulary.
    words: tuple[Feature, ...]
    vocabulary: Words
    # Pairs of word columns, by key, that the wide half crosses.
    crosses: tuple[tuple[str, str], ...]
    # Column -> the reason why it is left out.
    dropped: Mapping[str, str]
    training: Training


def decide(
    table: Table,
    *,
    label: str,
    task: Task | None = None,
    kinds: Mapping[str, Kind] | None = None,
    types: Mapping[str, Kind] | None = None,
) -> Decisions:
    """Decides how each column is used."""
    asked = dict(types or {})
    _check_kinds(table, kinds, label, "the schema file")
    _check_kinds(table, asked, label, "--type")
    types = {**(kinds or {}), **asked}
    rows = table.source.rows
    key_of = _keys([column.name for column in table.columns])
    target = next((column for column in table.columns if column.name == label), None)
    if target is None:
        raise ScaffoldError(f"no row has a value of the label {label!r}; name another column")
    numbers: list[Feature] = []
    dates: list[DateFeature] = []
    words: list[Feature] = []
    dropped: dict[str, str] = {}
    for column in table.columns:
        if column is target:
            continue
        kind = types.get(column.name) or _kind(column)
        why = _why_dropped(column, rows, kind=kind, is_asked=column.name in asked)
        if kinds is not None and column.name not in types:
            why = "the schema file does not name it"
        if why:
            dropped[column.name] = why
        elif kind in ("numbers", "words"):
            feature = Feature(
                name=column.name,
                key=key_of(column.name),
                missing=column.missing > 0,
                values=_distinct(column),
            )
            (numbers if kind == "numbers" else words).append(feature)
        else:
            dates.append(_date_feature(column, key_of(column.name), kind))
    if not numbers and not dates and not words:
        reasons = "; ".join(
            f"{name!r}: {why}" for name, why in itertools.islice(dropped.items(), 3)
        )
        raise ScaffoldError(
            f"no column is left to predict {label!r} from ({reasons}): add columns that are "
            "informative about it"
        )
    return Decisions(
        label=_label(
            target,
            rows,
            key=f"{key_of(label)}_label",
            task=task,
            kind=types.get(label),
        ),
        numbers=tuple(numbers),
        dates=tuple(dates),
        words=tuple(words),
        vocabulary=_vocabulary(rows),
        crosses=_crosses(words),
        dropped=dropped,
        training=_training(rows),
    )


def _check_kinds(table: Table, kinds: Mapping[str, Kind] | None, label: str, given_by: str) -> None:
    """Rejects kinds that do not fit the columns."""
    if kinds is None:
        return
    columns = {column.name: column for column in table.columns}
    unknown = sorted(set(kinds) - set(table.source.columns))
    if unknown:
        raise ScaffoldError(
            f"{given_by} names {unknown[0]!r}, but {table.source.path} has no such column; "
            "remove it"
        )
    if given_by != "--type" and label not in kinds:
        raise ScaffoldError(f"{given_by} does not name the label {label!r}; add it")
    if kinds.get(label, "numbers") not in ("numbers", "words"):
        raise ScaffoldError(
            f"{given_by} gives the label {label!r} as {kinds[label]}, but a label is numbers or words"
        )
    for name, kind in kinds.items():
        column = columns.get(name)
        if column is None or kind in ("words", "left-out"):
            continue
        if kind == "numbers":
            if column.type == "string":
                raise ScaffoldError(
                    f"column {name!r} is a number in {given_by}, but a string in "
                    f"{table.source.path}; correct one of them"
                )
        elif column.dates is None or (kind != "dates" and kind not in column.dates.orders):
            order = "" if kind == "dates" else f" with the {kind.removesuffix('-first')} first"
            raise ScaffoldError(
                f"column {name!r} is dates{order} in {given_by}, but not all its values in "
                f"{table.source.path} are; correct one of them, or give the column as words"
            )


def _kind(column: Column) -> Kind:
    """Returns a column's kind, judging by its values."""
    if column.dates:
        return "dates"
    if column.type == "string" or (column.type == "integer" and _ID_NAME.search(column.name)):
        return "words"
    return "numbers"


def _distinct(column: Column) -> int | None:
    return column.distinct if column.counts is None else len(column.counts)


def _why_dropped(column: Column, rows: int, *, kind: Kind, is_asked: bool) -> str | None:
    """Returns why a column is left out, or `None`."""
    present = rows - column.missing
    if kind == "left-out":
        return "--type leaves it out"
    if not present:
        return "it has no values"
    if column.most_values > 1:
        return f"it has up to {column.most_values:,} values in a row, but the model takes one"
    if len(column.counts or (1, 2)) == 1 and not column.missing:
        return "it has only one value"
    if kind == "dates" and column.dates and len(column.dates.orders) > 1:
        return (
            "day and month of its dates can't be told apart; give --type "
            f"'{column.name}=day-first' or '{column.name}=month-first'"
        )
    if is_asked or kind not in ("numbers", "words"):
        return None
    if column.type == "integer" and _numbers_rows(column, present):
        return "it numbers the rows"
    if kind == "numbers":
        return None
    # In a few rows all words may differ by chance.
    distinct = _distinct(column)
    if (distinct or _MANY_VALUES) > _MOST_WORDS_PER_ROW * present:
        return "most rows have a unique value, like an id or free text"
    return None


def _date_feature(column: Column, key: str, kind: Kind) -> DateFeature:
    found = column.dates
    if found is None:
        raise ValueError(f"column {column.name!r} has no dates")
    asked: Order | None = kind if kind in ("day-first", "month-first") else None
    return DateFeature(
        name=column.name,
        key=key,
        missing=column.missing > 0,
        order=asked or found.orders[0],
        first_day=found.first.isoformat(),
        parts=found.parts,
    )


def _vocabulary(rows: int) -> Words:
    """Limits the vocabulary to words that occur often enough to learn from."""
    training_rows = rows * (1 - _EVAL_SHARE)
    most = min(_MOST_WORDS, max(_FEWEST_WORDS, round(training_rows / _ROWS_PER_WORD)))
    return Words(most=most, fewest_rows=2 if rows < 2_000 else 5)


def _numbers_rows(column: Column, present: int) -> bool:
    """Returns whether a column's integers are consecutive, each once."""
    if column.type != "integer" or column.least is None or column.greatest is None:
        return False
    if column.greatest - column.least + 1 != present:
        return False
    if column.counts is not None:
        return len(column.counts) == present
    expected = math.sqrt((present**2 - 1) / 12)
    middle = (column.least + column.greatest) / 2
    return math.isclose(column.deviation or 0, expected, rel_tol=1e-6) and math.isclose(
        column.mean or 0, middle, rel_tol=1e-6
    )


def _label(column: Column, rows: int, *, key: str, task: Task | None, kind: Kind | None) -> Label:
    if column.missing:
        raise ScaffoldError(
            f"{column.missing:,} of {rows:,} rows have no value of the label {column.name!r}; "
            "remove these rows"
        )
    if column.most_values > 1:
        raise ScaffoldError(
            f"the label {column.name!r} has up to {column.most_values:,} values in a row; give one "
            "per row"
        )
    counts = column.counts
    if counts is not None and len(counts) == 1:
        raise ScaffoldError(
            f"the label {column.name!r} has only one value, {next(iter(counts))[:50]!r}: there is "
            "nothing to learn; name another label"
        )
    task = task or _task(column, kind)
    if task == "regression":
        if column.type == "string" or column.mean is None or column.deviation is None:
            raise ScaffoldError(
                f"the label {column.name!r} contains strings, which a regression can't predict; "
                "leave --task out"
            )
        if not all(map(math.isfinite, (column.mean, column.deviation))):
            raise ScaffoldError(f"the label {column.name!r} has an infinite value; remove its row")
        return Label(column.name, key, (), False, column.mean, column.deviation, 1.0, ())
    if counts is None or len(counts) > MOST_CLASSES:
        many = f"more than {MOST_CLASSES}" if counts is None else f"{len(counts):,}"
        raise ScaffoldError(
            f"the label {column.name!r} has {many} classes, but a scaffolded model takes at most "
            f"{MOST_CLASSES}; merge the rare ones into one"
        )
    if column.type == "float" and not _all_integers(column):
        raise ScaffoldError(
            f"the label {column.name!r} has fractions ({next(iter(counts))}), which are not "
            "classes; write its classes as integers or words, or leave --task out"
        )
    return _classes(column, counts, rows, key)


def _task(column: Column, kind: Kind | None) -> Task:
    if column.type == "string" or kind == "words":
        return "classification"
    few = column.counts is not None and len(column.counts) <= _MOST_INTEGER_CLASSES
    return "classification" if few and _all_integers(column) else "regression"


def _all_integers(column: Column) -> bool:
    """Returns whether all numbers are whole: pandas writes 1.0 if a column had gaps."""
    if column.type != "float":
        return column.type == "integer"
    return column.counts is not None and all(float(text).is_integer() for text in column.counts)


def _classes(column: Column, counts: Mapping[str, int], rows: int, key: str) -> Label:
    integers = column.type != "string"
    merged: dict[str | int, int] = {}
    for text, number in counts.items():
        # 1 and 01 are the same integer.
        value = int(float(text)) if integers else text
        merged[value] = merged.get(value, 0) + number
    order: tuple[str | int, ...] = tuple(sorted(merged))
    shares = tuple(merged[value] / rows for value in order)
    entropy = -sum(share * math.log(share) for share in shares)
    return Label(column.name, key, order, integers, 0.0, 1.0, entropy, shares)


def _crosses(words: list[Feature]) -> tuple[tuple[str, str], ...]:
    """Returns pairs of the columns with the fewest words, whose combinations occur often."""
    few = [word for word in words if 2 < (word.values or 0) + word.missing <= _MOST_CROSSED_WORDS]
    few = sorted(few, key=lambda word: (word.values, word.name))[:_MOST_CROSSES]
    return tuple((one.key, other.key) for one, other in itertools.combinations(few, 2))


def _training(rows: int) -> Training:
    """Decides how long to train: small tables overfit within a few hundred steps, large ones need fewer epochs."""
    training_rows = rows * (1 - _EVAL_SHARE)
    batch_size = 32 if rows < 2_000 else 128 if rows < 50_000 else 512
    # The evaluations end the training early. With 20 epochs, weekly patterns were not learned from 4,000 rows: R² 0.30
    # instead of 0.38.
    epochs = 30 if rows < 2_000 else 60 if rows < 50_000 else 8
    steps = min(10_000, max(300, round(epochs * training_rows / batch_size / 100) * 100))
    return Training(
        batch_size=batch_size,
        steps=steps,
        # On some tables with many columns and few rows, the best model is one of the first.
        eval_every_steps=max(20, steps // 40),
        hidden_units=(32, 16) if rows < 2_000 else (64, 32) if rows < 50_000 else (128, 64),
        dropout=0.2 if rows < 50_000 else 0.0,
    )


def _keys(names: list[str]) -> Callable[[str], str]:
    """Returns names for features, files and variables, one per column: letters, digits and underscores."""
    keys: dict[str, str] = {}
    for name in names:
        key = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower() or "column"
        key = key if key[0].isalpha() else f"c_{key}"
        taken = set(keys.values())
        keys[name] = next(
            each
            for each in itertools.chain([key], (f"{key}_{n}" for n in itertools.count(2)))
            if each not in taken
        )
    return keys.__getitem__
