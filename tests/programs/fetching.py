"""How the files of a public package come to this machine: by name and hash, once."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from tests.programs.packages import PACKAGES, Package

REPOSITORY = pathlib.Path(__file__).parents[2]
# Kept between runs; `make clean` removes it.
CACHE = REPOSITORY / ".make" / "programs"
DOWNLOAD_SECONDS = 300


class PackageError(Exception):
    """A package is not what the list says: its hash is another, or it can't be installed."""


class UnreachableError(PackageError):
    """No package index answers."""


def package_folder(requirement: str) -> pathlib.Path:
    """Returns the folder with a package's files, fetched by hash; its dependencies are not there.

    Args:
        requirement: Name and version, as the list has them: `"tf-slim==1.1.0"`.

    Raises:
        PackageError: If the package can't be had, or has another hash.
    """
    package = PACKAGES[requirement]
    folder = CACHE / f"{package.name}-{package.version}-{package.sha256[:12]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as partial:
            site = pathlib.Path(partial) / "site"
            install(package, site)
            # Where another process was quicker, its files are the same.
            if not folder.exists():
                site.rename(folder)
    return folder


def package_folder_or_skip(requirement: str) -> pathlib.Path:
    """Returns the folder of a package; the test is skipped where no package index answers."""
    try:
        return package_folder(requirement)
    except UnreachableError as error:
        pytest.skip(str(error))


def install(package: Package, folder: pathlib.Path, *, options: tuple[str, ...] = ()) -> None:
    """Installs one package into a folder, if what the index has is what the list says.

    Args:
        package: The package.
        folder: Where its files go; it must not exist.
        options: More options of pip.

    Raises:
        PackageError: If the package can't be had, or has another hash.
    """
    listed = folder.with_suffix(".txt")
    listed.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--no-compile"]
    command += ["--no-build-isolation"] if package.is_source else ["--only-binary=:all:"]
    # They were for older Pythons; whether they run on this one is the question.
    command += ["--ignore-requires-python"]
    # Where nothing answers, nothing waits.
    command += ["--retries", "1", "--timeout", "20", "--target", str(folder), "-r", str(listed)]
    ended = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_SECONDS,
        check=False,
        env={**os.environ, "PIP_USER": "0"},
    )
    if ended.returncode == 0:
        return
    said = ended.stderr.strip()[-600:]
    if "DO NOT MATCH THE HASHES" in ended.stderr:
        raise PackageError(
            f"{package.requirement} is not the file that the list names "
            f"(sha256 {package.sha256}); nothing of it was installed. pip: {said}"
        )
    raise UnreachableError(
        f"pip could not get {package.requirement}: a package index is needed the first time. "
        f"pip: {said}"
    )
