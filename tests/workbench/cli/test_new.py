"""Tests `tfx-tpu-trainer new` as typed: what is rejected, and what is written."""

import json
import pathlib
import runpy
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from tests.bad_input import case, row
from tfx_tpu_trainer.workbench.cli.main import main

HEADER = "size,color,country,label"
ROWS = [
    f"{number / 7},{'red' if number % 3 else 'blue'},US,{'yes' if number % 2 else 'no'}"
    for number in range(60)
]
WIDE = ",".join([*(f"c{number}" for number in range(9_999)), "label"])


def _new(folder, data, *options, label="label"):
    arguments = ["new", str(folder), "--data", str(data), "--label", label, *map(str, options)]
    return CliRunner().invoke(main, arguments)


def _csv(folder, header=HEADER, rows=ROWS, encoding="utf-8"):
    path = folder / "t.csv"
    path.write_bytes("\n".join([header, *rows, ""]).encode(encoding))
    return path


@pytest.mark.parametrize(
    ("header", "rows", "encoding"),
    [
        case(
            "new",
            "a CSV without the label",
            "has no column 'label', only 'size', 'color'",
            values=("size,color", ROWS, "utf-8"),
        ),
        case(
            "new",
            "a CSV with one row",
            "has 1 row, but a third is kept",
            "give at least 20",
            values=(HEADER, ROWS[:1], "utf-8"),
        ),
        case(
            "new",
            "a CSV of two rows with semicolons",
            "has 2 rows, but a third is kept",
            values=("amount;count;colour;label", ["1.5;2;red;no", "0.5;7;blue;yes"], "utf-8"),
        ),
        case(
            "new",
            "a CSV with 10,000 columns",
            "has 10,000 columns, but a scaffolded model takes at most 500",
            values=(WIDE, ROWS, "utf-8"),
        ),
        case(
            "new",
            "a CSV with a row of too many values",
            "line 3 has 5 values, but the header has 4",
            values=(HEADER, [ROWS[0], "1,2,3,4,5"], "utf-8"),
        ),
        case(
            "new",
            "a CSV with a column without a name",
            "column 1 has no name",
            "index=False",
            values=(",label", ["1,2"] * 60, "utf-8"),
        ),
        case(
            "new",
            "a CSV with two columns of one name",
            "two columns have the name 'a'",
            values=("a,a,label", ["1,2,3"] * 60, "utf-8"),
        ),
        case("new", "an empty file", "is empty: give a CSV file", values=("", [], "utf-8")),
    ],
)
def test_data_of_which_no_project_can_be_made(tmp_path, header, rows, encoding, refused):
    data = _csv(tmp_path, header, rows, encoding)
    ended = _new(tmp_path / "made", data)
    refused.output(ended)
    assert len(ended.output.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize("what", ["folder", "file", "link"])
@row("new", "a folder that is there already", "already exists: remove it, or give a new folder")
def test_a_folder_that_is_there_is_left_alone(tmp_path, what, refused):
    made = tmp_path / "made"
    if what == "folder":
        made.mkdir()
        (made / "kept.txt").write_text("mine", encoding="utf-8")
    elif what == "file":
        made.write_text("mine", encoding="utf-8")
    else:
        made.symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    refused.output(_new(made, tmp_path / "is not read"))
    assert sorted(tmp_path.rglob("*")) == before


@row("new", "a file where a folder should be", "is a file, so")
def test_a_folder_below_a_file_is_refused(tmp_path, refused):
    refused.output(_new(_csv(tmp_path) / "made", tmp_path / "t.csv"))


@pytest.mark.parametrize(
    "schema",
    [
        case(
            "new",
            "`--schema` that is not valid JSON",
            "is not valid JSON (",
            "bq show --schema",
            values="label STRING",
        ),
        case(
            "new",
            "`--schema` that is not a list",
            "is not a list of columns",
            values='{"name": "size"}',
        ),
        case(
            "new",
            "`--schema` with a RECORD",
            "column 'x' is RECORD; remove it",
            values='[{"name": "x", "type": "RECORD"}]',
        ),
        case(
            "new",
            "`--schema` with a repeated column",
            "column 'x' is REPEATED",
            values='[{"name": "x", "type": "STRING", "mode": "REPEATED"}]',
        ),
    ],
)
def test_a_schema_file_that_says_nothing_is_refused(tmp_path, schema, refused):
    path = tmp_path / "schema.json"
    path.write_text(schema, encoding="utf-8")
    ended = _new(tmp_path / "made", _csv(tmp_path), "--schema", path)
    refused.output(ended)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "setting",
    [
        case("new", "`--type` without a kind", "--type 'size' is not valid", values="size"),
        case(
            "new",
            "`--type` with an unknown kind",
            "--type 'size=floats' is not valid; give COLUMN=KIND with one of numbers, words",
            values="size=floats",
        ),
        case(
            "new",
            "`--type` of a column that is not there",
            "--type names 'sizes', but",
            values="sizes=words",
        ),
    ],
)
def test_a_type_that_no_column_can_have_is_refused(tmp_path, setting, refused):
    ended = _new(tmp_path / "made", _csv(tmp_path), "--type", setting)
    refused.output(ended)
    assert not (tmp_path / "made").exists()


@row("new", "a label with one value", "the label 'country' has only one value, 'US'")
def test_a_label_of_one_value_is_refused_after_tfdv_has_read_it(tmp_path, refused):
    data = _csv(tmp_path)
    refused.output(_new(tmp_path / "made", data, label="country"))
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize("broken", ["template", "folder"])
@row(
    "new",
    "a folder that can't be written",
    "can't be written (",
    "give a folder that you may write to",
)
def test_nothing_is_left_of_a_project_that_could_not_be_written(
    tmp_path, monkeypatch, broken, refused
):
    from cookiecutter import generate

    real = generate.generate_file

    def fails(*arguments, **options):
        real(*arguments, **options)
        if broken == "folder":
            (tmp_path / "made").mkdir()
            (tmp_path / "made" / "of another").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(generate, "generate_file", fails)
    refused.output(_new(tmp_path / "made", _csv(tmp_path)))
    expected = {"t.csv"} | ({"made"} if broken == "folder" else set())
    assert {path.name for path in tmp_path.iterdir()} == expected


ODD = """\
"the ""size"" {{ cookiecutter.name }}",größe|mm,on off,constant,row,label's
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of data whose names Python, YAML, Markdown and Jinja would take for their own."""
    folder = tmp_path_factory.mktemp("odd data")
    classes = ['"a""{% if %}"', "b\\"]
    rows = [
        f"{number % 11},{number / 3 if number % 5 else ''},{bool(number % 2)},7,{number},{classes[number % 2]}"
        for number in range(90)
    ]
    data = folder / "odd: {x}.csv"
    data.write_text(ODD + "\n".join(rows) + "\n", encoding="utf-8")
    ended = _new(folder / "Odd Project", data, label="label's")
    assert ended.exit_code == 0, ended.output
    return folder / "Odd Project", ended.output


def test_what_is_left_out_is_said_in_a_line(project):
    lines = project[1].splitlines()
    assert "left out: constant (it has only one value)" in lines
    assert "left out: row (it numbers the rows)" in lines
    assert sum(line.startswith("left out") for line in lines) == 2


def test_a_file_that_tfx_cannot_read_is_copied_into_the_project(tmp_path):
    rows = [
        f"{number % 7},5;{number % 28 + 1:02d}.02.2024 {number % 24}:00;{'ja' if number % 3 else 'nein'}"
        for number in range(60)
    ]
    data = _csv(tmp_path, "Größe;gekauft;label", rows, "latin-1")
    ended = _new(tmp_path / "made", data, "--type", "Größe=words")
    assert ended.exit_code == 0, ended.output
    copy = tmp_path / "made" / "data" / "t.csv"
    assert ended.output.startswith(
        f"{data} has Latin-1 text, semicolons, decimal commas, which CsvExampleGen can't read: "
        f"the project gets a copy that it can read, {copy}\n"
    )
    assert copy.read_text(encoding="utf-8").splitlines()[:2] == [
        "Größe,gekauft,label",
        "0.5,01.02.2024 0:00,nein",
    ]
    settings = yaml.safe_load((tmp_path / "made" / "config.yaml").read_text(encoding="utf-8"))
    assert (settings["data"], settings["data_file"]) == (str(copy.parent), "t.csv")
    columns = runpy.run_path(str(tmp_path / "made" / "transform" / "columns.py"))
    assert columns["WORDS"] == {"Größe": "gr_e"}
    assert columns["DATES"] == {
        "gekauft": ("gekauft", "day-first", "2024-02-01", ("weekday", "hour"))
    }
    assert columns["NUMBER_KEYS"] == ("gekauft_days", "gekauft_weekday", "gekauft_hour")


def test_odd_names_are_literals_in_the_project(project):
    folder, _ = project
    code = (
        "import json; from transform import columns as c; "
        "print(json.dumps([c.LABEL, c.CLASSES, list(c.NUMBERS), list(c.WORDS), c.WITH_GAPS]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, check=True
    )
    label, classes, numbers, words, gaps = json.loads(ended.stdout)
    assert label == "label's" and classes == ['a"{% if %}', "b\\"]
    assert numbers == ['the "size" {{ cookiecutter.name }}', "größe|mm"]
    assert words == ["on off"] and gaps == ["gr_e_mm"]
    settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert settings["name"] == "odd-project" and settings["data_file"] == "odd: {x}.csv"
    assert settings["data"] == str(folder.parent) and settings["serving_absent"] == ["label's"]
    # Of the rows that have all values the first, as the data has it; the label is to be predicted.
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    row = {numbers[0]: 1, numbers[1]: 1 / 3, "on off": "True"}
    assert request == {"signature_name": "predict_raw", "instances": [row]}


def test_the_project_s_code_is_clean(project):
    folder, _ = project
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        ".gitignore",
        "Makefile",
        "README.md",
        "config.py",
        "config.yaml",
        "local_runner.py",
    } <= names
    assert {
        "model.py",
        "pipeline.py",
        "request.json",
        "tuning.py",
        "schema/schema.pbtxt",
        "tests/conftest.py",
        "tests/test_project.py",
    } <= names
    assert {"transform/__init__.py", "transform/columns.py", "transform/preprocessing.py"} <= names
    assert not any("cookiecutter" in name for name in names)
    ruff = [
        str(pathlib.Path(sys.executable).with_name("ruff")),
        "check",
        "--isolated",
        "--line-length=120",
    ]
    rules = "--select=E,F,W,B,UP,SIM"
    ended = subprocess.run([*ruff, rules, str(folder)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
