"""The original in another interpreter, and what either interpreter makes of one model folder."""

import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from benchmarks import oracle_environment


@pytest.fixture(scope="session")
def original_python() -> str:
    """The interpreter of the original's environment, made where it is missing."""
    return str(oracle_environment.oracle_python())


def facts_of(python: str, program: ModuleType, *arguments: Any) -> dict[str, Any]:
    """What another interpreter's estimator makes of a folder: the last line that a program prints, which is JSON."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.getcwd()}
    if python != sys.executable:
        # The original's environment has no Keras 2.
        environment.pop("TF_USE_LEGACY_KERAS", None)
    ended = subprocess.run(
        [python, "-m", program.__name__, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])
