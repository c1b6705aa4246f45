"""Tests the wheel with its own requirements: without TFX, but with estimators, `compat` and the doctor."""

import dataclasses
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.listings import README, listings_of

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(
        not importlib.metadata.version("tfx").startswith("1.16."),
        reason="the other line's Python may run on its own glibc, which an environment made of it has not",
    ),
]

# What the tests themselves need.
_OF_TESTS = ("pandas", "pytest", "pytest-timeout", "pytest-xdist", "scipy", "tensorflow-hub")
_FOLDERS = ("estimator", "compat", "components/user_module/test_module.py")
# They read TFX's data, compare with TFMA, or count with development's tools.
_NEED_MORE = (
    "estimator/test_carried_checkpoint.py",
    "compat/test_tfma_names.py",
    "compat/doctor/test_contrib_counts.py",
)

# After the README's own program, in its process.
_NO_TFX = """
import sys
assert not {"tfx", "apache_beam", "tensorflow_transform"} & set(sys.modules)
"""


@dataclasses.dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and a folder with the tests but without the package's sources."""

    python: Path
    folder: Path

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with nothing of this process's environment that would choose Keras or a package for it."""
        from_here = ("PYTEST_", "PYTHON", "TF_USE_LEGACY_KERAS")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(from_here)}
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    root = tmp_path_factory.mktemp("light")
    source, folder, environment = root / "source", root / "folder", root / "environment"
    source.mkdir()
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "tfx_tpu_trainer", source / "tfx_tpu_trainer", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source / name)
    for name in ("tests", "docs", "benchmarks", "pipelines", "scripts"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, folder / name)
    uv = (sys.executable, "-m", "uv")
    for command in (
        (*uv, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", root, source),
        (sys.executable, "-m", "venv", "--without-pip", environment),
    ):
        subprocess.run(command, check=True)
    python = environment / "bin" / "python"
    install = (*uv, "pip", "install", "--quiet", "--python", python)
    (wheel,) = root.glob("*.whl")
    constraints = ("--constraints", REPOSITORY / "requirements" / "dev.lock")
    for arguments in (
        ("--require-hashes", "-r", REPOSITORY / "requirements" / "base.lock"),
        ("--no-deps", wheel),
        (*constraints, *_OF_TESTS),
    ):
        subprocess.run((*install, *arguments), check=True)
    return Installed(python, folder)


def test_the_readmes_program_trains_on_eight_emulated_cores_without_tfx(installed):
    ended = installed.run("-c", listings_of(README)[0] + _NO_TFX)
    assert ended.returncode == 0, ended.stdout
    assert (installed.folder / "runs" / "sums" / "checkpoint").exists()


def test_what_is_missing_is_named_with_the_extra_that_brings_it(installed):
    ended = installed.run("-c", "import tfx_tpu_trainer; tfx_tpu_trainer.TpuTrainer")
    last = ended.stdout.strip().splitlines()[-1]
    assert ended.returncode == 1 and last.endswith("pip install 'tfx-tpu-trainer[tfx]'"), (
        ended.stdout
    )


def test_the_tests_of_estimators_compat_and_doctor_pass_there(installed):
    ended = installed.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-warnings", "--tb=short"),
        *("-m", "not sweep and not programs and not engines and not e2e"),
        *(f"--ignore=tests/{name}" for name in _NEED_MORE),
        *(f"tests/{name}" for name in _FOLDERS),
        # As in `make test`: the tests' files import TensorFlow before anything of ours could choose Keras 2.
        TF_USE_LEGACY_KERAS="1",
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
