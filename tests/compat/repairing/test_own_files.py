"""Which files are a program's own."""

from __future__ import annotations

import sysconfig

import click
import pytest

import tfx_tpu_trainer
from tfx_tpu_trainer.compat.repairing.own_files import OwnFiles, files_of_module, files_of_program


@pytest.fixture
def project(tmp_path):
    for name in (
        "train.py",
        "lib/a.py",
        "pack/__init__.py",
        "pack/sub/__init__.py",
        "pack/sub/run.py",
        "pack/model.py",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "vendor/site-packages/y.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def _own(files: OwnFiles, project) -> set[str]:
    paths = {path.relative_to(project).as_posix(): path for path in project.rglob("*.py")}
    return {name for name, path in paths.items() if str(path) in files}


EVERYTHING = {"train.py", "lib/a.py", "pack/__init__.py", "pack/sub/__init__.py"}
EVERYTHING |= {"pack/sub/run.py", "pack/model.py"}


@pytest.mark.parametrize("program", ["train.py", "pack/sub/run.py", ""])
def test_a_program_s_are_those_below_its_folder_or_package(project, program):
    assert _own(files_of_program(str(project / program)), project) == EVERYTHING


def test_a_link_leads_to_its_program(project, tmp_path_factory):
    link = tmp_path_factory.mktemp("elsewhere") / "link.py"
    link.symlink_to(project / "train.py")
    files = files_of_program(str(link))
    assert str(project / "lib" / "a.py") in files
    assert str(link) in files


def test_a_module_s_are_those_of_its_package(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    assert _own(files_of_module("pack.sub.run"), project) == {
        name for name in EVERYTHING if name.startswith("pack/")
    }
    assert _own(files_of_module("train"), project) == EVERYTHING
    assert files_of_module("no_such_module").roots == ()


def test_libraries_are_nobody_s(monkeypatch):
    library = sysconfig.get_path("stdlib")
    # A file that stands among installed ones is a program alone; a package, as a whole.
    assert files_of_module("this").roots == (f"{library}/this.py",)
    assert click.__file__ in files_of_module("click.core")
    assert pytest.__file__ not in files_of_module("click.core")
    assert tfx_tpu_trainer.__file__ not in OwnFiles(["/"])
