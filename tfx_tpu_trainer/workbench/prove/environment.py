"""Makes the environment of the real TPUEstimator once: TensorFlow 2.15.1, from hash-checked packages."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

LOCK = Path(__file__).with_name("original.lock")
"""The packages to install, with hashes."""

# These belong to this process's own environment.
_NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PIP_TARGET")


class EnvironmentFailedError(RuntimeError):
    """The environment could not be made."""


def original_python(say: Callable[[str], None]) -> Path:
    """Returns the environment's interpreter; makes the environment if it is missing."""
    if sys.version_info[:2] != (3, 10):
        raise EnvironmentFailedError(
            "the original's environment is locked for Python 3.10, and this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}; give --original PYTHON, one with TensorFlow 2.15"
        )
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    venv = Path(home) / "tfx_tpu_trainer" / "original"
    return make_environment(venv, LOCK, "TensorFlow 2.15.1 (1.7 GB, once", say=say)


def make_environment(venv: Path, lock: Path, what: str, *, say: Callable[[str], None]) -> Path:
    """Makes a virtual environment from a lock file, unless it exists.

    Args:
        venv: Its folder.
        lock: Requirements with hashes.
        what: Its purpose, as the beginning of a parenthesis.
        say: Called with a line when it is made.

    Returns:
        Its interpreter.

    Raises:
        EnvironmentFailedError: If it could not be made.
    """
    stamp, python = venv / ".setup-done", venv / "bin" / "python"
    digest = hashlib.sha256(lock.read_bytes() + str(venv).encode()).hexdigest()

    def is_done() -> bool:
        return python.exists() and stamp.exists() and stamp.read_text() == digest

    if is_done():
        return python
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as file:
        # Two processes must not install into one folder.
        fcntl.flock(file, fcntl.LOCK_EX)
        if not is_done():
            _make(venv, python, lock, what, say)
            # Written last: a venv without it is incomplete, and is made again.
            stamp.write_text(digest)
    return python


def _make(venv: Path, python: Path, lock: Path, what: str, say: Callable[[str], None]) -> None:
    log = Path(f"{venv}.log")
    say(f"making {venv} for {what}; progress: tail -f {log})")
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
                raise EnvironmentFailedError(f"{venv} could not be made; see {log}")
