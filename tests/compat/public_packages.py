"""Public packages with programs of tf.estimator, and how a test runs one as it stands."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
LOCK = pathlib.Path(__file__).with_name("public_packages.lock")
# Kept between runs of the tests; `make clean` removes it.
CACHE = REPOSITORY / ".make" / "programs"
DOWNLOAD_SECONDS = 120
RUN_SECONDS = 400


def package_folder(name: str) -> pathlib.Path:
    """Returns the folder with a package's files; its dependencies are not there.

    Args:
        name: Name and version, as they stand in the lock: `"tf-slim==1.1.0"`.
    """
    requirement = _requirement(name)
    digest = hashlib.sha256(requirement.encode()).hexdigest()[:12]
    folder = CACHE / f"{name.replace('==', '-')}-{digest}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as partial:
            _install(requirement, pathlib.Path(partial) / "site")
            (pathlib.Path(partial) / "site").rename(folder)
    return folder


def _requirement(name: str) -> str:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name} "))


def _install(requirement: str, folder: pathlib.Path) -> None:
    listed = folder.with_suffix(".txt")
    listed.write_text(requirement, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--require-hashes", "--no-compile"]
    # They were for older Pythons; whether they run on this one is what the tests ask.
    command += ["--ignore-requires-python"]
    # Where nothing answers, nothing waits.
    command += ["--retries", "0", "--timeout", "10", "--target", str(folder), "-r", str(listed)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
    )
    if ended.returncode == 0:
        return
    if "HASHES" in ended.stderr:
        pytest.fail(f"{requirement}: {ended.stderr}", pytrace=False)
    name = requirement.partition(" ")[0]
    pytest.skip(f"pip could not get {name} from its package index: {ended.stderr[-300:].strip()}")


def run_compat(
    words: Sequence[str],
    *,
    packages: Sequence[str | pathlib.Path] = (),
    environment: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m tfx_tpu_trainer.compat WORDS`; packages are names of the lock, or folders."""
    folders = [
        package_folder(package) if isinstance(package, str) else package for package in packages
    ]
    path = os.pathsep.join(map(str, [REPOSITORY, *folders]))
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN}
    return subprocess.run(
        [sys.executable, "-m", "tfx_tpu_trainer.compat", *words],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


# What the command sets itself, and what would choose for it.
_OWN = (
    "TF_USE_LEGACY_KERAS",
    "TFX_TPU_TRAINER_EMULATE",
    "TFX_TPU_TRAINER_EMULATED_REPLICAS",
    "TF_CONFIG",
)
