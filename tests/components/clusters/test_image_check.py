"""Whether an image can run a pipeline. In Docker's place stands a program that starts this Python."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_input import row
from tfx_tpu_trainer.components.clusters import _find_modules, _image_check
from tfx_tpu_trainer.components.clusters._checks import JobError

ROOT = Path(__file__).parents[3]
WANTED = ("tfx_tpu_trainer.components.trainer.trainer_executor", "pipelines.taxi")


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Puts a `docker` on the path that runs a shell script."""

    def make(script: str) -> None:
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return make


# What stands behind the image's name and "-" in the command are the modules.
_PYTHON = f'while [ "$1" != r/p:1 ]; do shift; done; shift; exec "{sys.executable}" -S -E "$@"'


def test_modules_are_found_by_their_files():
    assert _find_modules.is_there("tfx_tpu_trainer")
    assert _find_modules.is_there("tfx_tpu_trainer.components.clusters._find_modules")
    assert _find_modules.is_there("tfx_tpu_trainer.components.clusters")
    assert not _find_modules.is_there("tfx_tpu_trainer.no_such_module")
    assert not _find_modules.is_there("no_such_package.module")
    assert _find_modules.main(["os", "no_such_package"]) == "it lacks no_such_package"


def test_an_image_that_holds_everything(docker):
    docker(f'cd "{ROOT}"; {_PYTHON}')
    assert _image_check.check_image_holds("r/p:1", WANTED) is None


@row(
    "runners",
    "an image without the plugin",
    f"image='r/p:1' can't run this pipeline: it lacks {', '.join(WANTED)}; build it with",
)
def test_an_image_without_the_plugin_is_refused(docker, tmp_path, refused):
    docker(f'cd "{tmp_path}"; {_PYTHON}')
    with refused(JobError):
        _image_check.check_image_holds("r/p:1", WANTED)


def test_a_package_is_of_a_line_or_of_another():
    found = importlib.metadata.version("tfx")
    line = ".".join(found.split(".")[:2])
    assert _find_modules.main(["tfx", f"tfx=={line}"]) == 0
    assert _find_modules.main([f"tfx=={found}"]) == 0
    assert _find_modules.main(["no_such_package==1"]) == "it lacks no_such_package"
    # 1.1 is no line of 1.16's.
    assert "compiled with tfx 1.1" in _find_modules.main(["tfx==1.1"])


@row(
    "runners",
    "an image with another line of TFX",
    "image='r/p:1' can't run this pipeline: it has tfx 1.",
    ", but the pipeline was compiled with tfx 9.9; name an image of that line, or compile with the",
)
def test_an_image_of_another_line_is_refused(docker, refused):
    docker(f'cd "{ROOT}"; {_PYTHON.replace(" -S -E", "")}')
    with refused(JobError):
        _image_check.check_image_holds("r/p:1", (*WANTED, "tfx==9.9"))


@row(
    "runners",
    "an image without Python",
    "image='r/p:1' can't run this pipeline: ",
    "executable file not found",
    "build it with",
)
def test_an_image_without_python_is_refused(docker, refused):
    docker("echo 'exec: \"python\": executable file not found in $PATH' >&2; exit 127")
    with refused(JobError):
        _image_check.check_image_holds("r/p:1", WANTED)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'docker: Cannot connect to the Docker daemon.' >&2; exit 1",
            "Cannot connect to the",
        ),
        ("echo 'docker: No such image: r/p:1.' >&2; exit 125", "No such image"),
        ("exec sleep 30", "docker took longer than 1 seconds"),
    ],
)
def test_an_image_that_is_not_at_hand_is_said_to_be_unchecked(docker, script, reason):
    docker(script)
    note = _image_check.check_image_holds("r/p:1", WANTED, seconds=1)
    assert f"image 'r/p:1' was not checked ({reason}" in note
    assert "check it with: docker run --rm --interactive --pull=missing" in note


def test_the_command_that_is_named_can_be_typed(docker, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    note = _image_check.check_image_holds("r/p:1", WANTED)
    assert "(docker is not installed)" in note
    monkeypatch.undo()
    docker(f'cd "{tmp_path}"; {_PYTHON}')
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = note.partition("check it with: ")[2]
    run = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith("it lacks tfx_tpu_trainer")
