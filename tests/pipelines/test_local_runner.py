"""The command line, as far as it goes before a pipeline starts."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.local_runner import child_environment, main, resolve_config
from pipelines.run_child import data_problem, one_line


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    return result.output


def test_a_bad_config_ends_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    output = refused("--pipeline", "taxi", "--root", str(tmp_path), "--set", "trainer.steps=5")
    assert output.startswith("error: --set trainer.steps=5: unknown key 'steps' in 'trainer'")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_pipeline_is_refused() -> None:
    assert "did you mean 'digits'" in refused("--pipeline", "digit")


def test_a_second_run_in_the_same_root_is_refused(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        output = refused("--pipeline", "taxi", "--root", str(tmp_path))
    assert "another run is going on" in output


def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = refused("--pipeline", "taxi", "--root", str(tmp_path / "file" / "root"))
    assert "cannot be written" in output
    assert "--root" in output


def test_a_metadata_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_text(
        "no database at all, but long enough to look like a file"
    )
    output = refused("--pipeline", "taxi", "--root", str(tmp_path))
    assert "metadata.sqlite' cannot be read as ML Metadata" in output


def test_local_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve_config("taxi", config_file=None, root="here", overrides=["data=rides"])
    assert config.root == str(tmp_path / "here")
    assert config.data == str(tmp_path / "rides")
    assert config.metadata_file == str(tmp_path / "here" / "metadata.sqlite")


def test_the_child_has_the_environment_that_tensorflow_and_tfx_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = child_environment()
    assert environment["TF_USE_LEGACY_KERAS"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert environment["PYTHONPATH"].split(os.pathsep)[1] == "/elsewhere"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("label_key='x' is\n not there"), "ValueError: label_key='x' is not there"),
        (KeyError("fare"), "KeyError: 'fare'"),
        (RuntimeError(), "RuntimeError"),
        (
            RuntimeError("Traceback (most recent call last):\n  File\nValueError: no [while]\n"),
            "ValueError: no [while]",
        ),
    ],
)
def test_an_exception_becomes_one_line(error: Exception, expected: str) -> None:
    assert one_line(error) == expected


def test_a_long_message_is_cut() -> None:
    assert one_line(ValueError("x" * 5000)).endswith("... (the log has all of it)")


def test_missing_and_empty_data_are_named(tmp_path: Path) -> None:
    def problem(folder: str) -> str | None:
        config = resolve_config("taxi", config_file=None, root=None, overrides=[f"data={folder}"])
        return data_problem(config)

    assert "is not a folder" in problem(str(tmp_path / "none"))
    assert "holds no rows (files: 0)" in problem(str(tmp_path))
    (tmp_path / "a.csv").touch()
    assert "holds no rows (files: 1)" in problem(str(tmp_path))
    (tmp_path / "b.csv").write_text("fare\n")
    assert "holds no rows (files: 2)" in problem(str(tmp_path))
    (tmp_path / "b.csv").write_text("fare\n1\n")
    assert problem(str(tmp_path)) is None
