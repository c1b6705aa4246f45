"""Which values are dates, in which order, and what TensorFlow makes of them in a made project."""

from __future__ import annotations

import datetime
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfx_tpu_trainer.workbench.new as scaffold
from tfx_tpu_trainer.workbench.new.dates import DateSearch, read_date

# The file of a made project holds nothing that is filled in.
PARTS_OF = runpy.run_path(
    str(
        Path(scaffold.__file__).parent
        / "templates/project/{{cookiecutter.folder}}/transform/dates.{{cookiecutter.py}}"
    )
)["parts_of"]
UNIX = datetime.datetime(1970, 1, 1)


def _found(*values):
    search = DateSearch()
    for value in values:
        search.add(value)
    return search.result()


@pytest.mark.parametrize(
    ("values", "orders"),
    [
        (["2024-03-01", "2024-12-31"], ("year-first",)),
        (["2024/3/1 14:30", "2024/12/31 23:59:59.5"], ("year-first",)),
        (["2024-03-01T14:30:00Z", "2024-03-01T14:30:00+01:00"], ("year-first",)),
        (["01.02.2024", "02.03.2024"], ("day-first",)),
        (["1/2/2024", "31/12/2024"], ("day-first",)),
        (["1/2/24", "12/31/24 3:45 PM"], ("month-first",)),
        (["1/2/2024", "12/11/2024"], ("day-first", "month-first")),
    ],
)
def test_the_rows_decide_the_order(values, orders):
    assert _found(*values).orders == orders


@pytest.mark.parametrize(
    "values",
    [["2024-03-01", "soon"], ["31/12/2024", "12/31/2024"], ["2023-02-29"], ["1.5"], ["12:30"], []],
)
def test_other_values_are_no_dates(values):
    assert _found(*values) is None


def test_parts_that_never_change_are_left_out():
    found = _found("2024-03-01", "2024-03-02 00:00:00")
    assert found.parts == ("weekday",) and found.first == datetime.date(2024, 3, 1)
    assert _found("2023-12-31 10:00", "2024-01-07 11:00").parts == ("year", "month", "hour")


FORMS = {
    "year-first": ["%Y-%m-%d", "%Y/%m/%d %H:%M", "%Y-%m-%dT%H:%M:%S"],
    "day-first": ["%d.%m.%Y", "%d/%m/%y %H:%M:%S", "%d-%m-%Y %I:%M %p"],
    "month-first": ["%m/%d/%Y", "%m/%d/%y %I:%M:%S %p"],
}


@pytest.mark.parametrize(
    ("order", "form"), [(order, form) for order, forms in FORMS.items() for form in forms]
)
def test_tensorflow_reads_dates_as_python_does(order, form):
    draw = random.Random(form)
    first = datetime.datetime(1970, 1, 1)
    moments = [
        first + datetime.timedelta(minutes=draw.randrange(98 * 365 * 1440)) for _ in range(300)
    ]
    texts = [moment.strftime(form) for moment in moments]
    read = [read_date(text, order) for text in texts]
    assert read == [datetime.datetime.strptime(text, form) for text in texts]
    parts = {
        name: part.numpy()
        for name, part in PARTS_OF(tf.constant(texts), order, "2000-02-29").items()
    }
    since = datetime.datetime(2000, 2, 29)
    days = [(moment - since) / datetime.timedelta(days=1) for moment in read]
    np.testing.assert_allclose(parts["days"], days, rtol=1e-6, atol=1e-6)
    for name in ("year", "month", "hour"):
        assert parts[name].tolist() == [getattr(moment, name) for moment in read]
    assert parts["weekday"].tolist() == [moment.weekday() for moment in read]


def test_a_zone_moves_the_days_and_not_the_hour():
    texts = ["2024-03-01T01:30:00+02:00", "2024-02-29 18:30:00-0500", "2024-02-29T23:30Z"]
    parts = PARTS_OF(tf.constant(texts), "year-first", "2024-02-29")
    np.testing.assert_allclose(parts["days"], [23.5 / 24] * 3, rtol=1e-6)
    assert parts["hour"].numpy().tolist() == [1, 18, 23]


def test_what_is_no_date_is_missing_in_every_part():
    texts = ["2024-02-30", "2023-02-29", "2024-13-01", "2024-01-01 24:00", "", "soon", "1/2/2024"]
    for part in PARTS_OF(tf.constant(texts), "year-first", "2024-01-01").values():
        assert np.isnan(part.numpy()).all()
