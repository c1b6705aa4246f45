"""The listings of docs/canned.md run, one after the other."""

from __future__ import annotations

import tempfile

import pytest

from tests.listings import DOCS, run_listings

pytestmark = pytest.mark.matrix


def test_the_listings_of_the_page_run(tmp_path, monkeypatch):
    # They name no folder for their model.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = run_listings(DOCS / "canned.md")
    assert names["metrics"]["global_step"] == 32
    assert names["metrics_of_cores"]["global_step"] == 42
    assert set(names["metrics"]) == set(names["metrics_of_cores"])
