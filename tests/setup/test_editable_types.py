"""Type checkers find an editable installation from another folder, as the README says it is made."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_editable(sys.argv[1], {"editable_mode": "compat"}))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment's Python, into which the package was installed as the README says."""
    project = tmp_path / "project"
    (project / "tfx_tpu_trainer" / "_support").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, project / name)
    # A module that imports no other one: mypy would read them all.
    for name in ("__init__.py", "py.typed", "_support/__init__.py", "_support/messages.py"):
        shutil.copy(REPOSITORY / "tfx_tpu_trainer" / name, project / "tfx_tpu_trainer" / name)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(tmp_path)],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")],
        check=True,
        timeout=300,
    )
    (site_packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(tmp_path / built.stdout.splitlines()[-1]) as wheel:
        wheel.extractall(site_packages)
    return tmp_path / "venv" / "bin" / "python"


def test_mypy_knows_the_types_of_an_editable_installation(tmp_path: Path, python: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "program.py").write_text(
        "from tfx_tpu_trainer._support.messages import printable\nprintable(5)\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", str(python), "program.py"],
        cwd=user,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "import-not-found" not in found.stdout and "import-untyped" not in found.stdout
    assert 'Argument 1 to "printable" has incompatible type "int"' in found.stdout, found.stdout
