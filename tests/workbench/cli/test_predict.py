"""Tests `tfx-tpu-trainer predict` on models whose answers follow a formula."""

import csv
import json
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from tests.bad_input import case
from tfx_tpu_trainer.workbench.cli.main import main

# Of the columns `age` (an integer), `paid` (a number) and `city` (words).
HEADER = ["name", "city", "age", "paid", "left"]
ROWS = [
    ["ann", "Bern", "30", "1.5", "yes"],
    ["bob, jr.", "", "41.0", "", "no"],
    ["", "Zürich", "", "-0.25", "yes"],
]


def score(age, paid, city):
    """Computes the models' output; a missing number counts as 0."""
    return (age or 0) / 100 + 2 * (paid or 0) - (city == "Zürich")


SCORES = [score(30, 1.5, "Bern"), score(41, None, None), score(None, -0.25, "Zürich")]


def export(folder: pathlib.Path, *, classes: bool, named: bool = False) -> pathlib.Path:
    """Exports a model of classes, as a made project's is, or of a quantity; `named` takes no tf.Examples."""
    spec = {
        "age": tf.TensorSpec([None], tf.int64, name="age"),
        "city": tf.TensorSpec([None], tf.string, name="city"),
        "paid": tf.TensorSpec([None], tf.float32, name="paid"),
    }

    def answer(age, city, paid):
        logits = tf.cast(age, tf.float32) / 100 + 2 * paid
        logits -= tf.cast(tf.equal(city, "Zürich"), tf.float32)
        if not classes:
            return {"prediction_value": logits[:, tf.newaxis], "town": city}
        yes = tf.sigmoid(logits)
        ids = tf.cast(yes > 0.5, tf.int64)
        return {"probabilities": tf.stack([1 - yes, yes], axis=1), "class_id": ids}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def of_examples(examples):
        missing = {"age": 0, "city": "", "paid": 0.0}
        features = {
            name: tf.io.FixedLenFeature([], tensor.dtype, missing[name])
            for name, tensor in spec.items()
        }
        return answer(**tf.io.parse_example(examples, features))

    of_columns = tf.function(answer, input_signature=list(spec.values()))
    signatures = {"serving_default": of_examples, "predict_raw": of_columns}
    if named:
        signatures = {"serving_default": of_columns}
    tf.saved_model.save(tf.Module(), str(folder), signatures=signatures)
    return folder


@pytest.fixture(scope="module")
def quantity(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A model that answers with a number and a text, and takes named tensors."""
    return export(tmp_path_factory.mktemp("quantity"), classes=False, named=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A project that has pushed two models, of which the older one has other columns."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pipeline.py").touch()
    (folder / "config.yaml").write_text(
        "name: mine\nroot: runs\ntrainer: {module: model, label_key: left, train_steps: 1}\n",
        encoding="utf-8",
    )
    (folder / "transform").mkdir()
    (folder / "transform" / "columns.py").write_text(
        'LABEL = "left"\nCLASSES = ("stays", "leaves")\n', encoding="utf-8"
    )
    export(folder / "runs" / "serving" / "10", classes=True)
    tf.saved_model.save(tf.Module(), str(folder / "runs" / "serving" / "9"))
    return folder


def table(path: pathlib.Path, header=HEADER, rows=ROWS, delimiter=",", above="") -> pathlib.Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.write(above)
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def predict(*words):
    return CliRunner().invoke(main, ["predict", *map(str, words)])


def lines(path: pathlib.Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _yes(score: float) -> float:
    return 1 / (1 + math.exp(-score))


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_rows_get_a_class_and_the_probability_of_each(project, tmp_path, delimiter):
    rows = ROWS
    if delimiter == ";":
        rows = [[*row[:3], row[3].replace(".", ","), row[4]] for row in ROWS]
    above = "" if delimiter == "," else "# exported\n"
    data = table(tmp_path / "rows.csv", rows=rows, delimiter=delimiter, above=above)
    ended = predict(data, "--project", project, "--output", tmp_path / "out.csv")
    assert ended.exit_code == 0, ended.output
    assert "The model pushed last:" in ended.output and "runs/serving/10" in ended.output
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    answers = ["prediction", "probability_stays", "probability_leaves"]
    assert list(found[0]) == [*HEADER, *answers]
    assert [row["name"] for row in found] == ["ann", "bob, jr.", ""]
    assert [row["paid"] for row in found] == ["1.5", "", "-0.25"]
    assert [row["prediction"] for row in found] == ["leaves", "leaves", "stays"]
    for row, value in zip(found, SCORES, strict=True):
        probabilities = [float(row[name]) for name in answers[1:]]
        np.testing.assert_allclose(probabilities, [1 - _yes(value), _yes(value)], rtol=1e-5)
    # The first column, the label and the answers, to four digits.
    assert ended.output.splitlines()[4].split()[:4] == ["1", "ann", "yes", "leaves"]
    assert f"{_yes(SCORES[0]):.4g}" in ended.output and "more" not in ended.output


def test_a_folder_s_model_gives_its_outputs_as_json_lines(quantity, tmp_path):
    rows = [["ann", "Bern", "30", "1.5"], *[["bob", "Zürich", "41.0", "-0.25"]] * 1_200]
    data = table(tmp_path / "rows.csv", header=HEADER[:4], rows=rows)
    ended = predict(data, "--model", quantity, "--output", tmp_path / "out.jsonl")
    assert ended.exit_code == 0, ended.output
    found = lines(tmp_path / "out.jsonl")
    # In several requests. Numbers are numbers.
    assert len(found) == 1_201
    for row, value in ((0, score(30, 1.5, "Bern")), (1_200, score(41, -0.25, "Zürich"))):
        assert found[row].pop("prediction_value") == pytest.approx(value, rel=1e-6)
    assert found[0] == {"name": "ann", "city": "Bern", "age": 30, "paid": 1.5, "town": "Bern"}
    assert found[1_200]["age"] == 41
    assert "... 1,191 more" in ended.output


def test_rows_of_tf_examples_are_read_too(project, tmp_path):
    def feature(value):
        if isinstance(value, str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))

    rows = [{"age": 30, "paid": 1.5, "city": "Bern"}, {"paid": -0.25, "city": "Zürich"}]
    with tf.io.TFRecordWriter(str(tmp_path / "rows.tfrecord")) as writer:
        for row in rows:
            features = {name: feature(value) for name, value in row.items()}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    output = tmp_path / "out.jsonl"
    ended = predict(tmp_path / "rows.tfrecord", "--project", project, "--output", output)
    assert ended.exit_code == 0, ended.output
    found = lines(output)
    expected = [_yes(SCORES[0]), _yes(SCORES[2])]
    assert [row["probability_leaves"] for row in found] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("header", "changed", "words"),
    [
        case(
            "predict",
            "a table without two of the model's columns",
            "rows.csv has no column 'age', which the model reads (nor 'paid'), only 'name', 'city', 'a', 'b'",
            values=(["name", "city", "a", "b", "left"], ROWS[0], []),
        ),
        case(
            "predict",
            "a word in a column of integers",
            "rows.csv: row 1,001 has 'age' as 'old', but the model takes an integer; correct it",
            values=(HEADER, ["x", "Bern", "old", "1", ""], []),
        ),
        case(
            "predict",
            "a fraction in a column of integers",
            "row 1,001 has 'age' as '30.5', but the model takes an integer",
            values=(HEADER, ["x", "Bern", "30.5", "1", ""], []),
        ),
        case(
            "predict",
            "a word in a column of numbers",
            "row 1,001 has 'paid' as '1,50 EUR', but the model takes a number",
            values=(HEADER, ["x", "Bern", "30", "1,50 EUR", ""], []),
        ),
        case(
            "predict",
            "a row with a value more than the header has names",
            "rows.csv: line 1002 has 6 values, but the header has 5 names; correct the line",
            values=(HEADER, ["x", "Bern", "30", "1", "", ""], []),
        ),
        case(
            "predict",
            "a table with a column called as that of the predictions",
            "has a column 'prediction', as --output has for the predictions; rename it",
            values=(["prediction", *HEADER[1:]], ROWS[0], []),
        ),
        case(
            "predict",
            "a `--output` of an unknown kind",
            "out.parquet' ends in neither .csv nor .jsonl; give one of the two forms",
            values=(HEADER, ROWS[0], ["--output", "out.parquet"]),
        ),
        case(
            "predict",
            "the file of rows as `--output`",
            "--output 'rows.csv' is the file of rows; give another one",
            values=(HEADER, ROWS[0], ["--output", "rows.csv"]),
        ),
        case(
            "predict",
            "a folder that is no project, and no `--model`",
            "is not a project",
            "or name a model's folder with --model",
            values=(HEADER, ROWS[0], ["--project", "."]),
        ),
        case(
            "predict",
            "a `--model` that is none",
            "contains no saved_model.pb",
            values=(HEADER, ROWS[0], ["--model", "."]),
        ),
    ],
)
def test_what_can_not_be_answered_is_refused_in_one_line(
    project, tmp_path, monkeypatch, refused, header, changed, words
):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "rows.csv", header=header, rows=[*[ROWS[0]] * 1_000, changed])
    before = (tmp_path / "rows.csv").read_bytes()
    refused.output(predict("rows.csv", "--project", project, "--output", "out.csv", *words))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert (tmp_path / "rows.csv").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        case(
            "predict", "a file of rows that is not there", "is not a file; give a", values=(None,)
        ),
        case(
            "predict",
            "a header without rows",
            "has no rows; give a file",
            values=("age,city,paid\n",),
        ),
        case("predict", "an empty file of rows", "is empty: give a CSV file with", values=("",)),
        case(
            "predict",
            "a missing value for a model that takes named tensors",
            "rows.csv: row 1 has no value of 'paid', which the model needs; add it",
            values=("age,city,paid\n3,Bern,\n",),
        ),
    ],
)
def test_a_file_without_rows_is_refused(quantity, tmp_path, refused, content):
    if content is not None:
        (tmp_path / "rows.csv").write_text(content, encoding="utf-8")
    refused.output(predict(tmp_path / "rows.csv", "--model", quantity))


def test_a_project_without_a_model_is_told_to_train_one(project, tmp_path):
    data = table(tmp_path / "rows.csv")
    ended = predict(data, "--project", project, "--root", tmp_path / "other")
    assert ended.exit_code == 1
    assert "other' has no model yet; train one with `tfx-tpu-trainer run`" in ended.output
