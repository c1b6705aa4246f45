"""The two lines' Pythons, where both are here: `make test-latest` makes them and says where the other one is."""

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import REPOSITORY

SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of TFX.

    Attributes:
        python: Its interpreter.
        tfx: Its TFX's version.
    """

    python: str
    tfx: str

    def run(self, *words: str, **environment: str) -> str:
        """Runs its Python on the checkout and returns the output."""
        ended = subprocess.run(
            [self.python, *words],
            cwd=environment.pop("cwd", REPOSITORY),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def do(self, action: str, *words: Any) -> Any:
        """Has an action of one_side.py done."""
        output = self.run("-m", "tests.lines.one_side", action, *map(str, words))
        return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="session")
def here() -> Line:
    """The line that runs the tests."""
    return Line(sys.executable, importlib.metadata.version("tfx"))


@pytest.fixture(scope="session")
def there(here: Line) -> Line:
    """The other line."""
    python = os.environ.get("OTHER_LINE_PYTHON")
    if not python:
        pytest.skip("needs both lines of TFX: make test-latest")
    asked = "import importlib.metadata; print(importlib.metadata.version('tfx'))"
    line = Line(python, Line(python, "").run("-c", asked).strip())
    if line.tfx == here.tfx:
        pytest.skip(f"both environments have TFX {here.tfx}: make setup LINE=1.16")
    return line
