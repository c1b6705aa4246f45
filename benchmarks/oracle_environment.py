"""Makes `.make/oracle`: the virtual environment of the original, from `requirements/oracle.lock`."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

REPOSITORY = Path(__file__).parents[1]
LOCK = REPOSITORY / "requirements" / "oracle.lock"
VENV = REPOSITORY / ".make" / "oracle"
# What belongs to the environment this process runs in.
_NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PIP_TARGET")


def oracle_python(venv: Path = VENV) -> Path:
    """Returns the interpreter of the original's environment, which is made where it is missing.

    Args:
        venv: Where it is.

    Raises:
        click.ClickException: If it can't be made.
    """
    stamp, python = venv / ".setup-done", venv / "bin" / "python"
    digest = hashlib.sha256(LOCK.read_bytes() + str(venv).encode()).hexdigest()

    def is_done() -> bool:
        return python.exists() and stamp.exists() and stamp.read_text() == digest

    if is_done():
        return python
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as lock:
        # Two benchmarks must not install into one folder.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_done():
            _make(venv, python)
            # Written last: a venv without it was interrupted, and is made anew.
            stamp.write_text(digest)
    return python


def _make(venv: Path, python: Path) -> None:
    log = Path(f"{venv}.log")
    click.echo(f"making {venv} for TensorFlow 2.15.1 (1.7 GB, once; progress: tail -f {log})")
    shutil.rmtree(venv, ignore_errors=True)
    # Our own pip installs: an older one can't install with hashes, and pip knows of the mirrors and
    # certificates that are configured here.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    commands = (
        [sys.executable, "-m", "venv", "--without-pip", str(venv)],
        [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)],
    )
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_THEIRS}
    with open(log, "w") as output:
        for command in commands:
            ended = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
            )
            if ended.returncode:
                raise click.ClickException(
                    f"the environment of the original could not be made; see {log}. Without it: "
                    "leave `real` out of --contenders."
                )
