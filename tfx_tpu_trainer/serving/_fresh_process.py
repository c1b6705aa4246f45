"""Runs a module of this package in a separate process, as a server would start: nothing imported, nothing traced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer._support.processes import SAFE_PATH
from tfx_tpu_trainer._support.waiting import said_while_waiting

# Packages whose import registers ops. A server has them built in; a fresh process must be told.
_OP_LIBRARIES = ("struct2tensor", "tensorflow_decision_forests", "tensorflow_text")


# What TensorFlow imports where it is installed and goes without where it is not: a quarter of the time that it takes to
# import. A server has none of it; an op library may need it.
_SPARED = ("googleapiclient", "keras", "pandas", "tf_keras")

# The module is imported before the job is there. Without one the other process has ended, or needs nothing any more.
# An entry of None says to Python that there is no such module.
_RUN_MAIN = f"""{SAFE_PATH}import importlib, json
spared = sys.argv[2:]
sys.modules.update(dict.fromkeys(spared))
module = importlib.import_module(sys.argv[1])
for name in spared:
    del sys.modules[name]
job = json.loads(sys.stdin.read() or "null")
if job:
    for library in job["libraries"]:
        importlib.import_module(library)
    module.main(*job["arguments"])
"""


class FreshProcessError(RuntimeError):
    """A process that has not done its work; says why in one line."""


class FreshProcess:
    """A process that runs a module of this package, and imports it while this one does something else.

    It waits for its arguments, and ends by itself where this process ends first.
    """

    def __init__(self, module: str) -> None:
        """Starts the process.

        Args:
            module: Full name of a module with a function `main` of strings.
        """
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN_MAIN, module, *(() if _libraries() else _SPARED)],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def __enter__(self) -> FreshProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                stream.close()

    def run(self, given: Sequence[str], *, timeout_seconds: float) -> None:
        """Calls the module's `main` and waits for its end; once only.

        Packages that register ops and are imported in this process are imported there first.

        Args:
            given: What `main` is called with.
            timeout_seconds: Seconds after which it is killed.

        Raises:
            FreshProcessError: It has failed, has been killed, or has taken too long.
        """
        job = json.dumps({"libraries": _libraries(), "arguments": list(given)})
        try:
            with said_while_waiting(
                f"{self._module} in a separate process, which loads the exported model",
                change=f"It is stopped after {timeout_seconds:g} s (serving_check_timeout).",
            ):
                _, errors = self._process.communicate(job.encode(), timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise FreshProcessError(
                f"it did not finish within {timeout_seconds:g} s and was stopped"
            ) from None
        if self._process.returncode:
            raise FreshProcessError(
                _reason(self._process.returncode, errors.decode(errors="replace"))
            )


def _libraries() -> list[str]:
    return [name for name in _OP_LIBRARIES if name in sys.modules]


def _environment() -> dict[str, str]:
    path = [str(PACKAGE_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
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
