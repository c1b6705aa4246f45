"""Tests what a file must be for a project, without TensorFlow, and which columns are dates."""

import csv
import datetime
import random
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfx_tpu_trainer.workbench.new as scaffold
from tfx_tpu_trainer.workbench.new import reading
from tfx_tpu_trainer.workbench.new.arguments import ScaffoldError
from tfx_tpu_trainer.workbench.new.reading import MOST_COUNTED, DateSearch, read_date


def _write(path, header, rows, encoding="utf-8"):
    path.write_bytes("\n".join([header, *rows, ""]).encode(encoding))
    return path


def read_source(path, *, label):
    """Returns a file's contents; a copy is in the same folder."""
    scratch = path.parent / "copy"
    scratch.mkdir(exist_ok=True)
    return reading.read_source(path, label=label, scratch=scratch)


def _rows(count):
    return [f"{number},{number % 3},{'yes' if number % 2 else 'no'}" for number in range(count)]


def test_the_values_of_a_csv_are_counted(tmp_path):
    rows = ["1,,b", "2,x,b", "", "3,x,c"] + ["4,y,c"] * 20
    source = read_source(_write(tmp_path / "t.csv", "n,word,label", rows), label="label")
    assert (source.kind, source.rows) == ("csv", 23)
    assert source.path == (tmp_path / "t.csv").absolute()
    assert source.columns["n"].counts == {"1": 1, "2": 1, "3": 1, "4": 20}
    assert source.columns["word"].counts == {"x": 2, "y": 20}
    assert [source.columns[name].missing for name in ("n", "word", "label")] == [0, 1, 0]


def test_too_many_values_are_not_counted_any_more(tmp_path):
    path = _write(tmp_path / "t.csv", "n,third,label", _rows(MOST_COUNTED + 1))
    columns = read_source(path, label="label").columns
    assert columns["n"].counts is None and columns["n"].missing == 0
    assert len(columns["third"].counts) == 3


def test_quotes_may_hold_commas(tmp_path):
    path = _write(tmp_path / "t.csv", 'a,"b, c"', ['"x, y",1'] * 20)
    assert read_source(path, label="b, c").columns["a"].counts == {"x, y": 20}


def _example(**values):
    features = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        elif isinstance(value, float):
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        elif value is not None:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.mark.parametrize("name", ["t.tfrecord", "t.tfrecord.gz", "data-00000-of-00001"])
def test_the_values_of_a_tfrecord_are_counted(tmp_path, name):
    options = "GZIP" if name.endswith(".gz") else ""
    path = tmp_path / name
    with tf.io.TFRecordWriter(str(path), options=options) as writer:
        for number in range(30):
            word = b"w" if number % 3 else None
            writer.write(_example(n=number % 2, x=number / 4, word=word, label=b"a\xff"))
    source = read_source(path, label="label")
    assert (source.kind, source.rows) == ("tfrecord", 30)
    assert source.columns["n"].counts == {"0": 15, "1": 15}
    assert source.columns["word"].missing == 10
    assert source.columns["label"].counts == {"a\\xff": 30}
    assert len(source.columns["x"].counts) == 30


def _refused(path, label="label"):
    with pytest.raises(ScaffoldError) as error:
        read_source(path, label=label)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [("a,label", [], "has 0 rows"), ("label", ["1"] * 20, "no column other than the label")],
)
def test_a_csv_that_is_no_table_is_refused(tmp_path, header, rows, said):
    assert said in _refused(_write(tmp_path / "t.csv", header, rows))


NAMES = ["size", "note", "label"]
TABLE = [["0.5", "x; y, z\tü", "no"], ["1.5", "", "yes"], ["2", "#1", "no"]] * 10


def _file(path, *, delimiter=",", encoding="utf-8", end="\n", top=(), names=NAMES, table=TABLE):
    """A file of the table as another program would write it."""
    with path.open("w", encoding=encoding, newline="") as file:
        file.writelines(f"{line}{end}" for line in top)
        csv.writer(file, delimiter=delimiter, lineterminator=end).writerows([names, *table])
    return path


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ({}, ()),
        ({"end": "\r\n"}, ()),
        ({"delimiter": ";"}, ("semicolons",)),
        ({"delimiter": "\t"}, ("tabs",)),
        ({"encoding": "utf-8-sig"}, ("a byte order mark",)),
        ({"encoding": "utf-16", "delimiter": "\t"}, ("UTF-16", "tabs")),
        ({"encoding": "latin-1"}, ("Latin-1 text",)),
        ({"top": ["# of 2024", '# "quoted', ""]}, ("comment lines",)),
        ({"end": "\r"}, ("lines that end in CR alone",)),
    ],
    ids=lambda each: "-".join(map(str, each.values())) or "plain" if isinstance(each, dict) else "",
)
def test_csv_files_of_other_programs_are_read(tmp_path, form, found):
    path = _file(tmp_path / "t.csv", **form)
    source = read_source(path, label="label")
    assert source.copied_for == found and (source.path == path) == (not found)
    with source.path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [NAMES, *TABLE]
    assert source.rows == len(TABLE)
    assert source.columns["note"].counts == {"x; y, z\tü": 10, "#1": 10}


def test_comments_between_rows_are_left_out_where_comments_stand_on_top(tmp_path):
    rows = [*_rows(15), "# a comment", *_rows(15)]
    path = _write(tmp_path / "t.csv", "# of 2024\nn,third,label", rows)
    source = read_source(path, label="label")
    assert source.rows == 30 and source.copied_for == ("comment lines",)
    path = _write(tmp_path / "t.csv", "#n,third,label", _rows(30))
    source = read_source(path, label="label")
    assert source.copied_for == () and list(source.columns) == ["#n", "third", "label"]


def test_line_breaks_in_values_become_spaces(tmp_path):
    table = [["1", "two\nlines", "no"], ["2", "a\r\nb", "yes"]] * 15
    source = read_source(_file(tmp_path / "t.csv", table=table), label="label")
    assert source.copied_for == ("line breaks in values",)
    assert source.columns["note"].counts == {"two lines": 15, "a b": 15}
    assert source.path.read_text(encoding="utf-8").count("\n") == 31


def test_decimal_commas_become_points(tmp_path):
    table = [["1,5", "3,x", "no"], ["-2", "4,5", "yes"], ["", "", "no"]] * 10
    path = _file(tmp_path / "t.csv", delimiter=";", table=table)
    columns = read_source(path, label="label").columns
    assert columns["size"].counts == {"1.5": 10, "-2": 10}
    assert columns["note"].counts == {"3,x": 10, "4,5": 10}


def test_the_delimiter_is_the_one_that_gives_the_label(tmp_path):
    path = _write(tmp_path / "t.csv", "a, b;label", ["1, 2;x", "3, 4, 5;y"] * 15)
    source = read_source(path, label="label")
    assert source.columns["a, b"].counts == {"1, 2": 15, "3, 4, 5": 15}


def test_a_damaged_tfrecord_is_refused(tmp_path):
    path = tmp_path / "t.tfrecord"
    path.write_bytes(struct.pack("<Q", 12) + b"no checksum of it at all")
    assert "is not a TFRecord file, or is damaged" in _refused(path)


def test_records_that_are_no_examples_are_refused(tmp_path):
    path = tmp_path / "t.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"just text")
    assert "record 1 is not a tf.Example" in _refused(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    assert "is not a file" in _refused(tmp_path)
    assert "is not a file" in _refused(tmp_path / "absent.csv")


def test_a_csv_is_read_without_tensorflow(tmp_path):
    path = _write(tmp_path / "t.csv", "n,third,label", _rows(20))
    code = (
        "import sys, pathlib\n"
        "from tfx_tpu_trainer.workbench.new import create_project\n"
        "from tfx_tpu_trainer.workbench.new.reading import read_source\n"
        f"read_source(pathlib.Path({str(path)!r}), label='label', scratch=pathlib.Path())\n"
        "assert not {'tensorflow', 'tfx', 'cookiecutter'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


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
