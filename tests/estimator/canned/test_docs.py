"""The listings of docs/canned.md run, one after the other."""

from __future__ import annotations

import pathlib
import re
import tempfile
from typing import Any


def test_the_listings_of_the_page_run(tmp_path, monkeypatch):
    # They name no folder for their model.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    page = pathlib.Path(__file__).parents[3] / "docs" / "canned.md"
    names: dict[str, Any] = {}
    for listing in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(listing, str(page), "exec"), names)
    assert names["metrics"]["global_step"] == 32
    assert names["metrics_of_cores"]["global_step"] == 42
    assert set(names["metrics"]) == set(names["metrics_of_cores"])
