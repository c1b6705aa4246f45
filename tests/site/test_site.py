"""The documentation's site is built as `make docs` builds it: without a warning, and with every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# 35 s of processor time: `make docs` does it too.
pytestmark = pytest.mark.sweep


def test_the_site_is_built_strictly(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    said = r"(\d+) pages, (\d+) public names documented, (\d+) docstrings with an example"
    pages, names, examples = map(int, re.search(said, built.stderr).groups())
    assert pages >= 90
    assert names >= 710
    assert examples >= 59
    index = (tmp_path / "site" / "search" / "search_index.js").read_text(encoding="utf-8")
    # Search without a server: the index is a script, and reaches into the API.
    assert index.startswith("var __index = ")
    assert "EvalMetricsGate" in index
