"""A small checkout with a stand-in for Python and uv, on a PATH that holds no other of the kind."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = (
    *("bash", "cat", "cp", "cut", "dirname", "env", "flock", "grep", "mkdir", "mv", "rm", "sh"),
    *("sha256sum", "sleep", "sort", "tail", "uname"),
)

# Answers the script's question as a Python 3.10 would, makes a virtual environment of copies of itself and notes
# each call. What the script really installs is what runs these tests.
PYTHON_3_10 = """#!/bin/sh
if [ "$*" = "-I - 3.10" ]; then cat >/dev/null; echo "$0"; exit; fi
echo "${{0##*/}} $* [VIRTUAL_ENV=${{VIRTUAL_ENV-}}] [PYTHONPATH=${{PYTHONPATH-}}]" >>"{notes}/calls"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/uv" ;;
  *dev.lock)
    [ ! -e "{notes}/hang" ] || sleep 60
    [ ! -e "{notes}/${{0##*/}}-fails" ] || {{ echo "no such host"; exit 1; }} ;;
esac
"""


@dataclasses.dataclass(frozen=True)
class Checkout:
    """A checkout in which scripts/setup_environment can be called.

    Attributes:
        root: The checkout.
        bin: The only folder on PATH.
        notes: Where the stand-ins note their calls; files in it make them hang or fail.
        pyenv: PYENV_ROOT.
    """

    root: pathlib.Path
    bin: pathlib.Path
    notes: pathlib.Path
    pyenv: pathlib.Path

    @property
    def venv(self) -> pathlib.Path:
        return self.root / ".make" / "venv"

    @property
    def is_set_up(self) -> bool:
        return (self.venv / ".setup-done").exists()

    def calls(self, containing: str = "") -> list[str]:
        path = self.notes / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line for line in lines if containing in line]

    def add_python(self, path: pathlib.Path, text: str = PYTHON_3_10) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(notes=self.notes), encoding="utf-8")
        path.chmod(0o755)

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "scripts" / "setup_environment"],
            env={
                "PATH": str(self.bin),
                "HOME": str(self.root),
                "PYENV_ROOT": str(self.pyenv),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(**environment)
        stdout, stderr = process.communicate(timeout=30)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def kill_while_installing(self) -> None:
        """Starts a set-up and kills it, children and all, in the middle of installing."""
        hang = self.notes / "hang"
        hang.touch()
        process = self.start()
        deadline = time.monotonic() + 20
        while not self.calls("dev.lock") and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
        hang.unlink()


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """A checkout with small locks, a compiler and no Python yet."""
    root = tmp_path / "checkout of a user"  # with spaces, as folders of users have
    for name in ("scripts", "requirements"):
        (root / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup_environment", root / "scripts")
    for name in ("bootstrap.lock", "dev.lock"):
        (root / "requirements" / name).write_text("some-package==1.0\n", encoding="utf-8")
    (root / "setup.py").write_text("# the package\n", encoding="utf-8")

    folders = [tmp_path / name for name in ("bin", "notes", "pyenv")]
    for folder in folders:
        folder.mkdir()
    for tool in TOOLS:
        (folders[0] / tool).symlink_to(shutil.which(tool))
    for compiler in ("cc", "c++"):
        (folders[0] / compiler).symlink_to(shutil.which("true"))
    return Checkout(root, *folders)
