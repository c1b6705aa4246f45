"""The listings of docs/keras.md run, one after the other."""

from __future__ import annotations

import tempfile

import numpy as np

from tests.listings import DOCS, run_listings


def test_the_listings_of_the_page_run(tmp_path, monkeypatch):
    # They name no folder for their model.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = run_listings(DOCS / "keras.md")
    assert set(names["metrics"]) == set(names["metrics_of_cores"]) == {"loss", "mae", "global_step"}
    # The rows and the batches are the same: so are the steps.
    for name, value in names["metrics"].items():
        np.testing.assert_allclose(names["metrics_of_cores"][name], value, rtol=1e-4)
    row = np.ones([1, 4], "float32")
    assert not np.allclose(names["restored"](row), names["model"](row))
