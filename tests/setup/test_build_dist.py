"""Tests that a wheel's content follows from the checkout, and that type checkers find an editable installation.

The wheel itself: test_light_install.py.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tfx_tpu_trainer
from scripts.build_dist import missing_or_foreign
from tests.conftest import REPOSITORY

INFO = f"tfx_tpu_trainer-{tfx_tpu_trainer.__version__}.dist-info/METADATA"
FILES = (
    "tfx_tpu_trainer/__init__.py",
    "tfx_tpu_trainer/py.typed",
    "tfx_tpu_trainer/components/report/templates/page.html.j2",
    "tfx_tpu_trainer/workbench/new/templates/project/Makefile",
)


@pytest.fixture
def checkout(tmp_path):
    for name in (*FILES, "tfx_tpu_trainer/__pycache__/it.pyc", "tests/test_it.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


def test_a_whole_wheel_has_no_faults(checkout):
    assert list(missing_or_foreign([*FILES, INFO], checkout)) == []


@pytest.mark.parametrize("left_out", FILES)
def test_what_a_wheel_lacks_is_named(checkout, left_out):
    held = [name for name in (*FILES, INFO) if name != left_out]
    assert list(missing_or_foreign(held, checkout)) == [f"the wheel lacks {left_out}"]


def test_what_is_beside_the_package_is_named(checkout):
    (fault,) = missing_or_foreign([*FILES, INFO, "tests/test_it.py"], checkout)
    assert fault.startswith("the wheel has tests/test_it.py")


BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_editable(sys.argv[1], {"editable_mode": "compat"}))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Returns an environment's Python, into which the package was installed as in the README."""
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
