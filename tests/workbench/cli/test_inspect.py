"""Tests `tfx-tpu-trainer inspect` on a real export, as typed."""

import json
import os
import pathlib
import shutil
import uuid

import pytest
import tensorflow as tf
from click.testing import CliRunner

from tests.bad_input import case, row
from tests.serving.exports import (
    EACH_OTHER,
    IN_A_ROW,
    ROWS,
    TWICE_EACH,
    edited,
    examples,
    library_of,
    save_graph,
    save_metagraphs,
    tpu_program,
    train_and_export,
)
from tfx_tpu_trainer._support import whole_files
from tfx_tpu_trainer.serving import (
    Check,
    ServingCheck,
    describe_saved_model,
    read_saved_model,
    warmup_requests,
    write_serving_check,
    write_warmup,
)
from tfx_tpu_trainer.workbench.cli.main import main


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


def test_answers_are_compared_on_demand(model, tmp_path):
    alike = "serving_default: 8 rows, 3 rows padded to 8; largest difference 0"
    ended = _inspect(model, "--answers")
    assert ended.exit_code == 0, ended.output
    assert f"Both metagraphs answer alike: passed: {alike}" in ended.stdout
    rows = tmp_path / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(rows)) as writer:
        for row_ in examples(ROWS[:1]):
            writer.write(row_)

    def double(meta_graph):
        program = tpu_program(meta_graph)
        product = next(node for node in program.node_def if node.op == "MatMul")
        next(n for n in program.node_def if n.op == "AddV2").input[1] = f"{product.name}:product:0"

    path = edited(model / "Format-Serving", tmp_path / "copy", double)
    ended = _inspect(path, "--answers", "--rows", rows, "--json")
    assert ended.exit_code == 1
    found = json.loads(ended.stdout)["answers"]
    assert found["outcome"] == "failed"
    assert found["detail"].startswith("serving_default['y'], row 0 of 1 row: differs by ")


@pytest.mark.parametrize(
    ("record", "said"), [(None, "can't be read ("), (b"\xff\xff", "the rows are not tf.Examples (")]
)
def test_rows_that_are_none_are_named(model, tmp_path, record, said):
    rows = tmp_path / "rows.tfrecord"
    if record:
        with tf.io.TFRecordWriter(str(rows)) as writer:
            writer.write(record)
    ended = _inspect(model, "--answers", "--rows", rows)
    assert ended.exit_code == 1
    assert said in ended.output


def test_rows_are_of_use_with_answers_only(model):
    ended = _inspect(model, "--rows", "rows.tfrecord")
    assert ended.exit_code == 2
    assert "--rows needs --answers; add --answers" in ended.output


def test_a_version_folder_and_its_base(model, tmp_path):
    for version in ("9", "10"):
        shutil.copytree(model / "Format-Serving", tmp_path / "taxi" / version)
    of_base = json.loads(_inspect(tmp_path / "taxi", "--json").stdout)
    assert of_base["path"] == str(tmp_path / "taxi" / "10")
    assert of_base["check"] is None
    of_version = json.loads(_inspect(tmp_path / "taxi" / "9", "--json").stdout)
    assert of_version["meta_graphs"] == of_base["meta_graphs"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Model artifact with a small model, of which tests break a copy."""
    folder = tmp_path_factory.mktemp("small")
    save_metagraphs(str(folder / "Format-Serving"), ["serve"])
    (folder / "Format-Serving" / "assets.extra").mkdir()
    return folder


PB = "Format-Serving/saved_model.pb"
VARIABLES = "Format-Serving/variables"
INDEX = f"{VARIABLES}/variables.index"
DATA = f"{VARIABLES}/variables.data-00000-of-00001"
WARMUP = "Format-Serving/assets.extra/tf_serving_warmup_requests"
CHECK = "serving_check.json"


def broken(given, name, change, *says):
    """A row for a model of which one file is replaced by bytes, a folder, a pipe, a link or nothing."""
    return case("inspect", given, "Error: ", *says, values=(name, change))


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])


def put(content):
    return lambda path: path.write_bytes(content)


def link(target):
    return lambda path: path.symlink_to(target)


ANEW = "Copy its folder again, or export the model again"
NO_WARMUP = "tf_serving_warmup_requests is not a file of warm-up requests ("
NO_REPORT = "serving_check.json is not a report of a serving check ("


@pytest.mark.parametrize(
    ("name", "change"),
    [
        broken("a `saved_model.pb` that is garbage", PB, put(b"\xff" * 9), "can't be read: ", ANEW),
        broken("a `saved_model.pb` cut off", PB, cut_off, "can't be read: Error parsing", ANEW),
        broken(
            "an empty `saved_model.pb`",
            PB,
            put(b""),
            "contains no metagraph. Export the model again",
        ),
        broken(
            "a folder `saved_model.pb`",
            PB,
            pathlib.Path.mkdir,
            "its saved_model.pb is not a file",
            ANEW,
        ),
        broken("a pipe `saved_model.pb`", PB, os.mkfifo, "its saved_model.pb is not a file", ANEW),
        broken(
            "a `saved_model.pb` that is a link to itself",
            PB,
            link("saved_model.pb"),
            "contains no saved_model.pb; it has Format-Serving. Give the folder that contains it",
        ),
        broken(
            "a `saved_model.pbtxt` that is not UTF-8",
            "Format-Serving/saved_model.pbtxt",
            put(b"\xff"),
            "can't be read: 'utf-8' codec",
            ANEW,
        ),
        broken(
            "a `saved_model.pbtxt` that is not one",
            "Format-Serving/saved_model.pbtxt",
            put(b"nope {"),
            'can\'t be read: 1:1 : Message type "tensorflow.SavedModel" has no field',
            ANEW,
        ),
        broken(
            "a `saved_model.pbtxt` that is nested too deeply",
            "Format-Serving/saved_model.pbtxt",
            put(
                b'meta_graphs { signature_def { key: "a" value { outputs { key: "y" value {'
                + b"composite_tensor { components {" * 2000
                + b"} }" * 2000
                + b"} } } } }"
            ),
            "can't be read: ",
            ANEW,
        ),
        broken(
            "a model without `variables/`",
            VARIABLES,
            lambda path: None,
            "is incomplete: it has no variables/variables.index",
            ANEW,
        ),
        broken(
            "a model without `variables.index`",
            INDEX,
            lambda path: None,
            "is incomplete: it has no variables/variables.index",
            ANEW,
        ),
        broken(
            "a `variables.index` that is garbage",
            INDEX,
            put(b"garbage"),
            "is incomplete: variables/variables.index can't be read: file is too short",
            ANEW,
        ),
        broken(
            "a model without `variables.data-*`",
            DATA,
            lambda path: None,
            "is incomplete: only 0 of its files variables/variables.data-* exist",
            ANEW,
        ),
        broken(
            "a `variables.data-*` cut off",
            DATA,
            cut_off,
            "is incomplete: its files variables/variables.data-* hold 3 bytes, but its values need 4",
            ANEW,
        ),
        broken(
            "a link to itself in the model's folder",
            "Format-Serving/assets.extra/loop",
            link("loop"),
            "assets.extra/loop can't be read (Too many levels of symbolic links): copy the model's",
        ),
        broken(
            "warm-up requests that are garbage",
            WARMUP,
            put(b"garbage" * 9),
            f"{NO_WARMUP}corrupted record at 0): remove it, or write it again with write_warmup",
        ),
        broken(
            "a warm-up file that is a folder",
            WARMUP,
            pathlib.Path.mkdir,
            f"{NO_WARMUP}Is a directory): remove it, or write it again with write_warmup",
        ),
        *(
            broken(
                f"a `serving_check.json` that {given}",
                CHECK,
                put(content),
                f"{NO_REPORT}{says}",
                "): remove it, or let TpuTrainer write it again",
            )
            for given, content, says in (
                ("is empty", b"", "JSONDecodeError: Expecting value"),
                ("is not UTF-8", b"\xff", "UnicodeDecodeError: 'utf-8' codec"),
                ("is a list", b"[1]", "TypeError: list indices"),
                (
                    "is nested 100,000 deep",
                    b"[" * 100_000,
                    "RecursionError: maximum recursion depth",
                ),
                ("has no checks", b"{}", "KeyError: 'checks'"),
                (
                    "has a check with another outcome",
                    b'{"checks": [{"name": "a", "outcome": "fine", "detail": "b"}]}',
                    "a check is Check(name='a', outcome='fine'",
                ),
            )
        ),
        broken(
            "a folder `serving_check.json`",
            CHECK,
            pathlib.Path.mkdir,
            f"{NO_REPORT}FailedPreconditionError: ",
            "Is a directory): remove it, or let TpuTrainer write it again",
        ),
    ],
)
def test_a_model_that_is_broken_is_one_line_and_exit_code_1(small, tmp_path, name, change, refused):
    copy = tmp_path / "model"
    shutil.copytree(small, copy)
    path = copy / name
    if name.endswith(".pbtxt"):
        (copy / PB).unlink()
    if change is not cut_off:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    change(path)
    ended = _inspect(copy)
    refused.output(ended)
    assert ended.stdout == "" and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("records", "end"),
    [
        case(
            "inspect",
            f"warm-up requests {given}",
            "Error: ",
            f"{NO_WARMUP}{says}",
            "): remove it, or write it again with write_warmup",
            values=(records, end),
        )
        for given, records, end, says in (
            ("cut off", [b"one", b"two"], -3, "truncated record at"),
            ("that are other records", [b"\xff\xff"], None, "Error parsing message with type"),
        )
    ],
)
def test_warm_up_requests_that_are_none_are_one_line(small, tmp_path, records, end, refused):
    shutil.copytree(small, tmp_path / "model")
    path = tmp_path / "model" / WARMUP
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    path.write_bytes(path.read_bytes()[:end])
    refused.output(_inspect(tmp_path / "model"))


def test_a_link_upwards_is_followed_once(small, tmp_path):
    shutil.copytree(small, tmp_path / "model")
    (tmp_path / "model" / "Format-Serving" / "up").symlink_to("..")
    files = json.loads(_inspect(tmp_path / "model", "--json").stdout)["files"]
    assert "saved_model.pb" in files and len(files) < 10


def test_a_type_of_a_newer_tensorflow_is_shown_by_its_number(small, tmp_path):
    shutil.copytree(small, tmp_path / "model")
    path = tmp_path / "model" / PB
    model = read_saved_model(str(path.parent))
    model.meta_graphs[0].signature_def["serving_default"].inputs["x"].dtype = 9999
    path.write_bytes(model.SerializeToString())
    assert "x: type 9999[?, 3]" in _inspect(tmp_path / "model").stdout


@pytest.mark.parametrize(
    "make",
    [
        case("inspect", f"a path {given}", "Error: ", *says, values=make)
        for given, make, *says in (
            ("where there is nothing", lambda path: None, "The folder ", ": give the folder"),
            (
                "of an empty folder",
                pathlib.Path.mkdir,
                "contains no saved_model.pb; it has no files. Give the folder that contains it",
            ),
            (
                "of a folder with another number than a version's",
                lambda path: (path / "²").mkdir(parents=True),
                "contains no saved_model.pb; it has ². Give the folder that contains it",
            ),
            ("of a file", lambda path: path.write_text("text"), " is a file: give the folder"),
            ("of a pipe", os.mkfifo, " is a file: give the folder"),
        )
    ],
)
def test_a_path_without_a_model_is_one_line_and_exit_code_1(tmp_path, make, refused):
    make(tmp_path / "path")
    ended = _inspect(tmp_path / "path")
    refused.output(ended)
    assert ended.stdout == "" and ended.stderr.count("\n") == 1


@row(
    "inspect",
    "`inspect ''`",
    "Error: The path is empty: give the folder that contains saved_model.pb",
)
def test_an_empty_path_is_one_line_and_exit_code_1(refused):
    refused.output(_inspect(""))


@row(
    "inspect",
    "`inspect foo://a/b`",
    "path='foo://a/b'",
    "can't open foo:// paths",
    "gs://",
    "give one of those",
)
def test_an_address_that_tensorflow_does_not_open_is_named(refused):
    refused.output(_inspect("foo://a/b"))


@row(
    "inspect",
    "`inspect` of a model in a bucket whose writer was killed before saved_model.pb",
    "/model is incomplete",
    "no saved_model.pb or saved_model.pbtxt, which is written last",
)
def test_half_a_model_in_a_bucket_is_named(refused, monkeypatch):
    monkeypatch.setattr(whole_files, "_MARKER_SECONDS", 0.0)
    uri = f"ram://{uuid.uuid4().hex}/model"
    whole_files.write_whole(f"{uri}/variables/variables.index", "")
    refused.output(_inspect(uri))


@pytest.mark.parametrize("op", ["PartitionedCall", "BatchFunction", "TPUPartitionedCall"])
@pytest.mark.parametrize("calls", [TWICE_EACH, IN_A_ROW, EACH_OTHER, {"f1": []}])
def test_each_function_counts_once_however_often_it_is_called(tmp_path, calls, op):
    path = save_graph(tmp_path / "model", library_of(calls, op), "serve", output="call:0")
    ended = _inspect(path, "--json")
    assert ended.exit_code == 0, ended.output
    (meta_graph,) = json.loads(ended.stdout)["meta_graphs"]
    calls_in_all = 1 + sum(map(len, calls.values()))
    # The other two only start what counts.
    assert meta_graph["ops"]["host"] == ({op: calls_in_all} if op == "PartitionedCall" else {})
