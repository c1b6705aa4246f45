"""Runs a module of this package in a process of its own, as a server would start: nothing imported, nothing traced."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Sequence

_ROOT = pathlib.Path(__file__).resolve().parents[2]

# Packages whose import registers ops. A server has them built in; a fresh process must be told.
_OP_LIBRARIES = ("struct2tensor", "tensorflow_decision_forests", "tensorflow_text")


# `python -m` looks for modules in the working directory first, where a file called csv.py would be run in place of
# Python's own. Its option -P, which leaves that folder out, came with 3.11.
_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


class FreshProcessError(RuntimeError):
    """A process that has not done its work; says why in one line."""


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a module, whatever files lie in the working directory.

    Args:
        module: Full name of a module with a main part.
        *arguments: Its arguments.
    """
    return [sys.executable, "-c", _RUN_MODULE, module, *arguments]


def run_fresh(module: str, arguments: Sequence[str], *, timeout_seconds: float) -> None:
    """Runs `python -m module arguments...` and waits for its end.

    Args:
        module: Full name of a module with a main part. It imports the packages which are named
            by commas in its first argument.
        arguments: Its further arguments.
        timeout_seconds: Seconds after which it is killed.

    Raises:
        FreshProcessError: It has failed, has been killed, or has taken too long.
    """
    libraries = ",".join(name for name in _OP_LIBRARIES if name in sys.modules)
    try:
        ended = subprocess.run(
            command(module, libraries, *arguments),
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FreshProcessError(
            f"it has not ended within {timeout_seconds:g} s and was stopped"
        ) from None
    if ended.returncode:
        raise FreshProcessError(_reason(ended.returncode, ended.stderr.decode(errors="replace")))


def _environment() -> dict[str, str]:
    path = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        # What is checked is the file, on the host: devices of the trainer are none of its business.
        "CUDA_VISIBLE_DEVICES": "",
    }


def _reason(code: int, errors: str) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    # The last line that does not go on from another: an exception's first one.
    lines = [line for line in errors.splitlines() if line.strip()]
    raised = [line for line in lines if line.split(":")[0].split(".")[-1].endswith("Error")]
    return (raised or lines or [f"its process ended with exit code {code}"])[-1].strip()
