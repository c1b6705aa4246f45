"""Makes the peers' virtual environments: `.make/oracle` of the original, `.make/jax` of JAX."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

REPOSITORY = Path(__file__).parents[1]
# Belongs to this process's own environment.
_NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PIP_TARGET")


def oracle_python() -> Path:
    """Returns the interpreter of the original's environment, which is made if missing."""
    return _python_of("oracle", "oracle.lock", "TensorFlow 2.15.1 (1.7 GB, once")


def jax_python() -> Path:
    """Returns the interpreter of JAX's environment, which is made if missing."""
    return _python_of("jax", "jax-oracle.lock", "JAX 0.6.2 (0.5 GB, once")


def _python_of(name: str, lock_name: str, what: str) -> Path:
    venv, lock = REPOSITORY / ".make" / name, REPOSITORY / "requirements" / lock_name
    stamp, python = venv / ".setup-done", venv / "bin" / "python"
    digest = hashlib.sha256(lock.read_bytes() + str(venv).encode()).hexdigest()

    def is_done() -> bool:
        return python.exists() and stamp.exists() and stamp.read_text() == digest

    if is_done():
        return python
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as file:
        # Two benchmarks must not install into one folder.
        fcntl.flock(file, fcntl.LOCK_EX)
        if not is_done():
            _make(venv, python, lock, what)
            # Written last: a venv without it is incomplete, and is made again.
            stamp.write_text(digest)
    return python


def _make(venv: Path, python: Path, lock: Path, what: str) -> None:
    log = Path(f"{venv}.log")
    click.echo(f"making {venv} for {what}; progress: tail -f {log})")
    shutil.rmtree(venv, ignore_errors=True)
    # Our own pip installs: an older one can't check hashes, and pip knows the mirrors and certificates configured here.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    commands = (
        [sys.executable, "-m", "venv", "--without-pip", str(venv)],
        [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(lock)],
    )
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_THEIRS}
    with open(log, "w") as output:
        for command in commands:
            ended = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False
            )
            if ended.returncode:
                raise click.ClickException(
                    f"{venv} could not be created; see {log}. To do without the original, leave "
                    "`real` out of --contenders."
                )
