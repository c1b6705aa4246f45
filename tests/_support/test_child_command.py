"""Processes of ours import nothing from the working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfx_tpu_trainer._support.child_command import module_command
from tfx_tpu_trainer.workbench.run.local_runner import child_environment

# Names that Python's own modules and ours have, and that processes import early.
SHADOWED = ("csv", "runpy", "signal", "logging", "click", "pipelines", "tfx_tpu_trainer")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the working directory')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False
    )


def test_the_files_would_be_imported_by_python_alone(hostile: Path) -> None:
    ended = _run([sys.executable, "-m", "tfx_tpu_trainer.workbench.run.run_child", "--help"])
    assert "of the working directory" in ended.stderr


def test_the_child_of_the_local_runner_imports_none_of_them(hostile: Path) -> None:
    ended = _run(module_command("tfx_tpu_trainer.workbench.run.run_child", "--help"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--config-json" in ended.stdout


def test_a_pipelines_package_in_the_working_directory_is_found_behind_all_else(
    hostile: Path,
) -> None:
    package = hostile / "mine" / "first"
    package.mkdir(parents=True)
    (package / "config.yaml").write_text("")
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text("raise RuntimeError('found')")
    (hostile / "config.json").write_text(json.dumps({}))
    os.mkdir(hostile / "run")
    options = ["--config-json", "config.json", "--run-folder", "run"]
    ended = _run(
        module_command(
            "tfx_tpu_trainer.workbench.run.run_child", "--pipeline", "mine.first", *options
        )
    )
    assert "RuntimeError: found" in ended.stderr
    assert "of the working directory" not in ended.stderr
