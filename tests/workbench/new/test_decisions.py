"""Tests how a column is used, given TFDV's statistics."""

import datetime
import math
from pathlib import Path

import pytest

from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError
from tfx_tpu_trainer.workbench.new.decisions import MOST_CLASSES, decide
from tfx_tpu_trainer.workbench.new.measuring import Column, Table
from tfx_tpu_trainer.workbench.new.reading import Dates, Source, Values

ROWS = 1000


def _words(name, count, *, missing=0):
    counts = {f"w{number}": 1 for number in range(count)} if count is not None else None
    return Column(name, "string", missing, counts)


def _numbers(name, values, *, type="float", missing=0, most_values=1):
    counts = {str(value): values.count(value) for value in values}
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return Column(
        name,
        type,
        missing,
        counts,
        most_values=most_values,
        least=min(values),
        greatest=max(values),
        mean=mean,
        deviation=deviation,
    )


LABEL = Column("y", "string", 0, {"no": 750, "yes": 250})
X = _numbers("x", [0.5, 1.5, 2.5])


def _table(*columns, rows=ROWS):
    values = {column.name: Values(column.missing, column.counts) for column in columns}
    return Table(Source(Path("t.csv"), "csv", rows, values, {}), columns, schema="")


def _decide(*columns, rows=ROWS, **options):
    return decide(_table(*columns, rows=rows), label="y", **options)


def _refused(*columns, **options):
    with pytest.raises(ScaffoldError) as error:
        _decide(*columns, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_words_of_a_label_are_classes_in_order():
    label = _decide(X, LABEL).label
    assert label.classes == ("no", "yes") and not label.integers
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert label.loss_to_beat == pytest.approx(entropy)
    assert label.shares == (0.75, 0.25)


@pytest.mark.parametrize("type", ["integer", "float"])
def test_a_few_integers_of_a_label_are_classes(type):
    values = [10, 9, 2] if type == "integer" else [10.0, 9.0, 2.0]
    label = _decide(X, _numbers("y", values, type=type)).label
    assert label.classes == (2, 9, 10) and label.integers


@pytest.mark.parametrize(("type", "values"), [("float", [0.5, 1.0]), ("integer", list(range(21)))])
def test_other_numbers_of_a_label_are_a_quantity(type, values):
    column = _numbers("y", values, type=type)
    label = _decide(X, column).label
    assert label.classes == () and label.loss_to_beat == 1.0
    assert (label.mean, label.deviation) == (column.mean, column.deviation)


def test_the_task_wins_over_what_a_label_looks_like():
    assert not _decide(X, _numbers("y", [1, 2], type="integer"), task="regression").label.classes
    many = _numbers("y", list(range(50)), type="integer")
    assert len(_decide(X, many, task="classification").label.classes) == 50


@pytest.mark.parametrize(
    ("label", "options", "said"),
    [
        (
            Column("y", "string", 3, {"a": 1, "b": 996}),
            {},
            "3 of 1,000 rows have no value of the label",
        ),
        (Column("y", "string", 0, {"only": ROWS}), {}, "has only one value, 'only'"),
        (_words("y", MOST_CLASSES + 1), {}, "has 101 classes"),
        (_words("y", None), {}, "has more than 100 classes"),
        (LABEL, {"task": "regression"}, "contains strings, which a regression can't predict"),
        (_numbers("y", [0.5, 1.0]), {"task": "classification"}, "has fractions (0.5)"),
        (_numbers("y", [1.0, 2.0], most_values=3), {}, "has up to 3 values in a row"),
        (_numbers("y", [0.5, math.inf]), {}, "has an infinite value"),
    ],
)
def test_a_label_that_nothing_can_learn_is_refused(label, options, said):
    assert said in _refused(X, label, **options)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (Column("c", "string", 0, {"US": ROWS}), "one value"),
        (
            Column("c", "integer", 0, {"1": ROWS}, least=1, greatest=1, mean=1, deviation=0),
            "one value",
        ),
        (Column("c", "string", ROWS, {}), "no values"),
        (_words("c", 501), "most rows have a unique value, like"),
        (_words("c", None), "most rows have a unique value, like"),
        (_numbers("c", list(range(ROWS)), type="integer"), "numbers the rows"),
        (_numbers("c", [1.0, 2.0], most_values=7), "up to 7 values in a row"),
    ],
)
def test_a_column_that_says_nothing_is_left_out(column, why):
    decisions = _decide(X, column, LABEL)
    assert [feature.name for feature in decisions.numbers] == ["x"] and not decisions.words
    assert why in decisions.dropped["c"]


def test_row_numbers_are_seen_where_their_values_are_not_counted():
    counted = _numbers("c", list(range(5, ROWS + 5)), type="integer")
    rows = Column(**{**vars(counted), "counts": None})
    assert _decide(X, rows, LABEL).dropped
    # As many integers in the same range, most of them near its middle.
    others = Column(**{**vars(rows), "deviation": rows.deviation / 2})
    assert not _decide(X, others, LABEL).dropped


def test_one_value_with_gaps_says_something():
    column = Column("c", "string", 400, {"yes": 600})
    assert [feature.name for feature in _decide(X, column, LABEL).words] == ["c"]


def test_gaps_are_known_of_features():
    numbers = _decide(_numbers("a", [0.5, 1.5], missing=3), X, LABEL).numbers
    assert [(feature.name, feature.missing) for feature in numbers] == [("a", True), ("x", False)]


def test_nothing_left_to_learn_from_is_refused():
    said = _refused(Column("c", "string", 0, {"US": ROWS}), LABEL)
    assert "no column is left to predict 'y' from ('c': it has only one value)" in said


def test_keys_are_short_names_of_one_column_each():
    names = ["Mean Radius", "mean-radius", "2nd", "größe", "日本"]
    decisions = _decide(*(_numbers(name, [0.5, 1.5]) for name in names), LABEL)
    keys = [feature.key for feature in decisions.numbers]
    assert keys == ["mean_radius", "mean_radius_2", "c_2nd", "gr_e", "column"]


def test_the_words_of_few_values_are_crossed():
    columns = [_words("a", 5), _words("b", 3), _words("c", 101), _words("d", 2), _words("e", 50)]
    crosses = _decide(*columns, LABEL).crosses
    assert crosses == (("b", "a"), ("b", "e"), ("a", "e"))


def test_a_schema_file_says_what_are_words():
    zip_code = _numbers("zip", list(range(100)), type="integer")
    decisions = _decide(X, zip_code, LABEL, kinds={"zip": "words", "y": "words"})
    assert [feature.name for feature in decisions.words] == ["zip"] and not decisions.numbers
    assert decisions.dropped == {"x": "the schema file does not name it"}


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"y": "words", "z": "words"}, "names 'z', but t.csv has no such column"),
        ({"x": "numbers"}, "does not name the label 'y'"),
        (
            {"x": "numbers", "y": "numbers"},
            "column 'y' is a number in the schema file, but a string in t.csv",
        ),
    ],
)
def test_a_schema_file_of_other_data_is_refused(kinds, said):
    assert said in _refused(X, LABEL, kinds=kinds)


def _dates(name, orders=("year-first",), parts=("month",)):
    counts = {f"d{number}": 1 for number in range(ROWS)}
    found = Dates(orders, datetime.date(2024, 3, 1), parts)
    return Column(name, "string", 0, counts, dates=found)


def test_dates_become_numbers_though_each_row_has_its_own():
    (date,) = _decide(X, _dates("last login"), LABEL).dates
    assert (date.name, date.key, date.order) == ("last login", "last_login", "year-first")
    assert (date.first_day, date.parts) == ("2024-03-01", ("month",))


def test_dates_that_could_be_read_in_two_ways_are_left_out_until_the_user_says_how():
    both = _dates("when", ("day-first", "month-first"))
    decisions = _decide(X, both, LABEL)
    assert not decisions.dates and "'when=month-first'" in decisions.dropped["when"]
    (date,) = _decide(X, both, LABEL, types={"when": "month-first"}).dates
    assert date.order == "month-first"


def test_the_type_of_one_column_is_corrected():
    zip_code = _numbers("zip", list(range(100)), type="integer")
    decisions = _decide(X, zip_code, _words("id", ROWS), LABEL, types={"zip": "words"})
    assert [feature.name for feature in decisions.numbers] == ["x"]
    assert [feature.name for feature in decisions.words] == ["zip"] and "id" in decisions.dropped
    decisions = _decide(X, zip_code, _dates("d"), LABEL, types={"x": "left-out", "d": "words"})
    assert decisions.dropped == {"x": "--type leaves it out"}
    assert [feature.name for feature in decisions.words] == ["d"]


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"z": "words"}, "--type names 'z', but t.csv has no such column"),
        ({"y": "dates"}, "--type gives the label 'y' as dates"),
        ({"x": "dates"}, "column 'x' is dates in --type, but not all its values in t.csv are"),
        ({"d": "day-first"}, "column 'd' is dates with the day first in --type"),
        ({"d": "numbers"}, "column 'd' is a number in --type, but a string"),
    ],
)
def test_types_that_columns_cannot_have_are_refused(types, said):
    assert said in _refused(X, _dates("d"), LABEL, types=types)


@pytest.mark.parametrize("name", ["user_id", "userId", "ID", "store id"])
def test_integers_that_are_named_ids_are_no_quantities(name):
    few = _numbers(name, list(range(0, 200, 2)), type="integer")
    decisions = _decide(X, few, LABEL)
    assert [feature.name for feature in decisions.words] == [name]
    many = _numbers(name, list(range(0, 2 * ROWS, 2)), type="integer")
    assert "most rows have a unique value" in _decide(X, many, LABEL).dropped[name]


def test_integers_of_other_names_are_quantities():
    for name in ("paid", "bid", "idle", "width"):
        few = _numbers(name, list(range(0, 200, 2)), type="integer")
        assert not _decide(X, few, LABEL).words


def test_more_words_than_are_counted_are_used_where_rows_repeat_them():
    many = Column("c", "string", 0, None, distinct=20_000)
    assert "c" in _decide(X, many, LABEL, rows=30_000).dropped
    label = Column("y", "string", 0, {"no": 100_000, "yes": 200_000})
    decisions = _decide(X, many, label, rows=300_000)
    assert [feature.name for feature in decisions.words] == ["c"]


@pytest.mark.parametrize(("rows", "most"), [(150, 20), (6_000, 200), (300_000, 5_000)])
def test_the_rows_limit_the_words_with_an_id(rows, most):
    label = Column("y", "string", 0, {"no": rows // 3, "yes": rows - rows // 3})
    assert _decide(X, label, rows=rows).vocabulary.most == most


@pytest.mark.parametrize("rows", [20, 150, 2_000, 200_000, 50_000_000])
def test_a_training_has_an_end_for_any_number_of_rows(rows):
    column = Column("y", "string", 0, {"a": rows // 2, "b": rows - rows // 2})
    training = _decide(X, column, rows=rows).training
    assert 300 <= training.steps <= 10_000
    assert 0 < training.eval_every_steps < training.steps
