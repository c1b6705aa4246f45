"""`tfx-tpu-trainer inspect` on a real export, as it is typed."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import uuid

import pytest
from click.testing import CliRunner

from tests.bad_input import row
from tests.serving.exports import ROWS, examples, train_and_export
from tfx_tpu_trainer import whole_files
from tfx_tpu_trainer.cli.main import main
from tfx_tpu_trainer.serving import (
    Check,
    ServingCheck,
    describe_saved_model,
    warmup_requests,
    write_serving_check,
    write_warmup,
)

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Model artifact with warm-up requests and a report."""
    folder = tmp_path_factory.mktemp("inspected")
    exported = train_and_export(folder)
    serving = folder / "model" / "Format-Serving"
    shutil.copytree(exported, serving)
    write_warmup(
        str(serving),
        warmup_requests(describe_saved_model(str(serving)), examples(ROWS), batch_sizes=[1, 8]),
    )
    report = ServingCheck((Check("serve: answers", "failed", "not [what] was expected"),))
    write_serving_check(str(folder / "model"), report)
    return folder / "model"


def _inspect(*arguments):
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def test_json_says_it_all(model):
    ended = _inspect(model, "--json")
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["path"] == str(model / "Format-Serving")
    files = [p for p in (model / "Format-Serving").rglob("*") if p.is_file()]
    assert found["bytes"] == sum(os.path.getsize(p) for p in files)
    assert set(found["files"]) == {str(p.relative_to(model / "Format-Serving")) for p in files}
    host, tpu = found["meta_graphs"]
    assert (host["tags"], tpu["tags"]) == (["serve"], ["serve", "tpu"])
    for meta_graph in (host, tpu):
        signature = meta_graph["signatures"]["serving_default"]
        assert signature["inputs"] == {"examples": {"dtype": "string", "shape": [None]}}
        assert signature["outputs"]["y"] == {"dtype": "float32", "shape": [None, 2]}
    assert host["ops"]["on_tpu"] == {} and host["ops"]["host"]["MatMul"] == 1
    assert tpu["ops"]["on_tpu"]["MatMul"] == 1 and "MatMul" not in tpu["ops"]["host"]
    assert tpu["ops"]["outside_compilation"] == {"AsString": 1}
    assert found["warmup"] == [
        {"signature": "serving_default", "rows": rows, "records": 1} for rows in (1, 8)
    ]
    assert found["check"]["passed"] is False
    assert found["check"]["checks"][0]["detail"] == "not [what] was expected"


def test_tables_for_people(model):
    ended = _inspect(model)
    assert ended.exit_code == 0, ended.output
    for text in (
        "Tags: serve, tpu",
        "y: float32[?, 2]",
        "examples: string[?]",
        "AsString 1",
        "Warm-up: serving_default with 1 row, serving_default with 8 rows",
        "Check: FAILED",
        "not [what] was expected",
    ):
        assert text in ended.stdout, ended.stdout
    assert "TPUPartitionedCall" not in ended.stdout


def test_a_version_folder_and_its_base(model, tmp_path):
    for version in ("9", "10"):
        shutil.copytree(model / "Format-Serving", tmp_path / "taxi" / version)
    of_base = json.loads(_inspect(tmp_path / "taxi", "--json").stdout)
    assert of_base["path"] == str(tmp_path / "taxi" / "10")
    assert of_base["check"] is None
    of_version = json.loads(_inspect(tmp_path / "taxi" / "9", "--json").stdout)
    assert of_version["meta_graphs"] == of_base["meta_graphs"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "There is no folder"),
        (lambda path: path.mkdir(), "holds no saved_model.pb; in it are: no files"),
        (lambda path: path.write_text("text"), "is a file: give the folder"),
    ],
)
def test_a_path_without_a_model_is_one_line_and_exit_code_1(tmp_path, make, message):
    make(tmp_path / "path")
    ended = _inspect(tmp_path / "path")
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("Error: ") and ended.stderr.count("\n") == 1
    assert message in ended.stderr


@row("inspect", "`inspect foo://a/b`", "path='foo://a/b'", "opens no foo://", "gs://", "copy it")
def test_an_address_that_tensorflow_does_not_open_is_named(refused):
    refused.output(_inspect("foo://a/b"))


@row(
    "inspect",
    "`inspect` of a model in a bucket whose writer was killed before saved_model.pb",
    "/model is not whole",
    "no saved_model.pb or saved_model.pbtxt, which is written last",
)
def test_half_a_model_in_a_bucket_is_named(refused, monkeypatch):
    monkeypatch.setattr(whole_files, "_MARKER_SECONDS", 0.0)
    uri = f"ram://{uuid.uuid4().hex}/model"
    whole_files.write_whole(f"{uri}/variables/variables.index", "")
    refused.output(_inspect(uri))


def test_help_needs_no_tensorflow():
    program = (
        "import sys\n"
        "from tfx_tpu_trainer.cli.main import main\n"
        "try: main(['inspect', '--help'])\n"
        "finally: print([name for name in ('tensorflow', 'tfx', 'numpy') if name in sys.modules])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "Usage:" in ended.stdout and ended.stdout.rstrip().endswith("[]")
