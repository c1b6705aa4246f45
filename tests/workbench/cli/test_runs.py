"""`tfx-tpu-trainer report`, refused before anything is read."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tfx_tpu_trainer.workbench.cli.main import main


def _refused(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(main, ["report", *words])
    return ended.exit_code, ended.output.strip().splitlines()[-1]


@pytest.mark.parametrize("name", ["gone/away", "/gone"])
def test_a_path_without_a_folder_is_named(name):
    assert _refused(name) == (1, f"Error: The folder '{name}' does not exist.")


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert _refused(str(file)) == (
        1,
        f"Error: '{file}' is a file: give the folder of a training.",
    )


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
