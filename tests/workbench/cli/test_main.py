"""Tests the list of commands, paths that no command accepts, and errors of `report` and `compare`."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.bad_input import case
from tfx_tpu_trainer.workbench.cli.main import main


@pytest.mark.parametrize("columns", [80, 100])
def test_the_list_of_commands_cuts_no_sentence(columns):
    shown = CliRunner().invoke(main, ["--help"], terminal_width=columns).output
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in commands] == sorted(main.commands)
    for line in commands:
        assert line.endswith(".") and not line.endswith("..."), line
        assert len(line) <= 80, line


_HEAVY = ("keras", "ml_metadata", "numpy", "pydantic", "tensorflow", "tfx")


@pytest.mark.parametrize(
    "words",
    ["--help", "compile --help", "inspect --help", "predict --help", "preflight --help", "doctor"],
)
def test_what_opens_no_model_imports_nothing_heavy(tmp_path, words):
    (tmp_path / "old.py").write_text("import tensorflow as tf\ntf.contrib.nccl\n", encoding="utf-8")
    given = words.split() if "--help" in words else [words, str(tmp_path)]
    program = (
        "import sys\n"
        "from tfx_tpu_trainer.workbench.cli.main import main\n"
        f"try: main({given})\n"
        f"finally: print([name for name in {_HEAVY} if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == (words == "doctor"), ended.stderr
    assert ("2:1" if words == "doctor" else "Usage:") in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"


# As Python has the byte 0xff of a name on the command line.
_NAME = os.fsdecode(b"a\xff/b")


@pytest.mark.parametrize(
    "words",
    [
        case(
            "disks",
            f"`{' '.join(words)}` with a path that is not UTF-8",
            r"a\udcff/b' is not UTF-8, and TensorFlow opens no other paths; rename the file or folder, or give another",
            values=(words,),
        )
        for words in (
            ["report"],
            ["report", "--output"],
            ["inspect"],
            ["predict"],
            ["predict", "--model"],
            ["preflight", "--tpu=v5e:2x2", "--batch_size=1", "--saved_model"],
            ["new"],
            ["new", "folder", "--data"],
            ["run", "--pipeline=taxi", "--root"],
        )
    ],
)
def test_a_path_that_tensorflow_can_not_take_is_named(words, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    given = [*words, _NAME]
    if words == ["predict", "--model"]:
        given.append(__file__)
    if words[0] == "new":
        given += ["--label=y", *(["--data=data.csv"] if words == ["new"] else [])]
    refused.output(CliRunner().invoke(main, given))
    assert not list(tmp_path.iterdir())


def _refused(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(main, ["report", *words])
    return ended.exit_code, ended.output.strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["gone/away", "/gone"])
def test_a_path_without_a_folder_is_named(name):
    assert _refused(name) == (1, f"Error: The folder '{name}' does not exist.")


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert _refused(str(file)) == (1, f"Error: '{file}' is a file: give the folder of a training.")


def test_a_folder_without_a_training_is_refused_and_nothing_is_written(tmp_path):
    code, says = _refused(str(tmp_path), "--output", str(tmp_path / "page"))
    assert code == 1
    assert says.startswith(f"Error: '{tmp_path}' contains no training: give a folder with ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("root", ["/", "//"])
def test_the_root_of_all_folders_is_one(root):
    code, says = _refused(root)
    assert (code, says.partition(":")[0]) == (1, "Error")
    assert f"'{root}' contains no training: give a folder with " in says


def test_a_folder_goes_with_no_root(tmp_path):
    code, says = _refused(str(tmp_path), "--root", "r")
    assert code == 2
    assert "which can't be combined with --root 'r'; leave --root out" in says


def test_a_root_without_runs_is_named(tmp_path):
    code, says = _refused("--root", str(tmp_path))
    assert code == 1
    assert str(tmp_path) in says


def test_one_training_is_no_comparison():
    ended = CliRunner().invoke(main, ["compare", "a"])
    assert ended.exit_code == 2
    assert "a comparison needs at least two trainings; got only 'a'" in ended.output


@pytest.mark.parametrize("words", [["report", "gone/a"], ["compare", "gone/a", "gone/b"]])
def test_an_output_that_tensorflow_cannot_open_is_refused_before_anything_is_read(words):
    ended = CliRunner().invoke(main, [*words, "--output", "foo://page"])
    assert ended.exit_code == 1
    assert "--output='foo://page': this TensorFlow can't open foo:// paths" in ended.output
    assert len(ended.output.splitlines()) == 1


def test_a_project_without_a_search_is_not_tuned(tmp_path):
    (tmp_path / "pipeline.py").touch()
    (tmp_path / "config.yaml").touch()
    ended = CliRunner().invoke(main, ["tune", "--project", str(tmp_path)])
    assert ended.exit_code == 2
    assert ended.output.startswith(f"error: the config of '{tmp_path}' has no group `tune`")
    assert "add `tune: TuneSettings` to its config.py" in ended.output
    assert {path.name for path in tmp_path.iterdir()} == {"pipeline.py", "config.yaml"}
