"""Tests that our processes import nothing from the working directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.freed_blocks import blocks_freed_but_held, needs_glibc
from tfx_tpu_trainer._support.processes import available_memory, module_command, return_freed_memory
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


# How much memory is available, on a machine and in a container; and what goes back to it.

MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}
V2 = "sys/fs/cgroup/memory"
V1 = "sys/fs/cgroup/memory/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8000 * 1024),
        ({f"{V2}.max": "max\n", f"{V2}.current": "100\n"}, 8000 * 1024),
        ({f"{V2}.max": "5000\n", f"{V2}.current": "3000\n"}, 2000),
        (
            {
                f"{V2}.max": "5000\n",
                f"{V2}.current": "3000\n",
                f"{V2}.stat": "anon 1\ninactive_file 700\n",
            },
            2700,
        ),
        ({f"{V1}.limit_in_bytes": "9223372036854771712\n"}, 8000 * 1024),
        (
            {
                f"{V1}.limit_in_bytes": "5000\n",
                f"{V1}.usage_in_bytes": "4000\n",
                f"{V1}.stat": "inactive_file 1\ntotal_inactive_file 300\n",
            },
            1300,
        ),
        ({f"{V2}.max": "5000\n", f"{V2}.current": "6000\n"}, 0),
    ],
)
def test_it_is_what_the_machine_and_the_container_leave(tmp_path, files, expected):
    for name, text in {**MACHINE, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_memory(str(tmp_path)) == expected


def test_a_machine_that_says_nothing_has_none(tmp_path):
    assert available_memory(str(tmp_path)) == 0


def test_this_machine_has_some():
    assert available_memory() > 1 << 20


@needs_glibc
def test_freed_blocks_below_one_that_is_held_go_back_to_the_system():
    with blocks_freed_but_held(megabytes=120) as resident_kib:
        held = resident_kib()
        return_freed_memory()
        assert held - resident_kib() > 100_000
