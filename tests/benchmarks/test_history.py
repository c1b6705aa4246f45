"""What is kept of a release's benchmark, and its plot over versions."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import history
from benchmarks.run import report_of
from tests import bad_input
from tests.benchmarks.test_summary import NAMES, ROUNDS


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(report_of({"mlp": ROUNDS}, NAMES, {"threads": 2}).json(), encoding="utf-8")
    return path


def keep(version, folder, *results):
    return CliRunner().invoke(
        history.main,
        [version, *map(str, results), "--folder", str(folder)],
        catch_exceptions=False,
    )


def test_ratios_to_the_original_are_kept_and_drawn(results, tmp_path):
    folder = tmp_path / "history"
    for version in ("0.10.0", "0.9.0"):
        assert keep(version, folder, results).exit_code == 0
    found = history.read(folder)
    assert list(found) == ["0.9.0", "0.10.0"]
    kept = found["0.9.0"]
    assert kept["conditions"] == {"mlp": {"threads": 2}}
    # The original's own ratios are 1, and a contender that failed has none.
    assert list(kept["ratios"]["mlp"]) == ["ours"]
    of_ours = kept["ratios"]["mlp"]["ours"]
    assert of_ours["train_steps_per_second"]["value"] == pytest.approx(2.4)
    assert of_ours["memory_mb"]["value"] == pytest.approx(1.1)
    assert (folder / history.PLOT).read_bytes().startswith(b"\x89PNG")


def test_runs_of_a_model_each_are_kept_together(results, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(report_of({"cnn": ROUNDS}, NAMES, {"threads": 4}).json(), encoding="utf-8")
    folder = tmp_path / "history"
    assert keep("1.0.0", folder, results, other).exit_code == 0
    found = history.read(folder)["1.0.0"]
    assert found["conditions"] == {"mlp": {"threads": 2}, "cnn": {"threads": 4}}
    assert found["ratios"]["cnn"] == found["ratios"]["mlp"]


@bad_input.row(
    "runners",
    "`python -m benchmarks.history` of two runs of the same model",
    "results.json has a model of another file (mlp); give one run of each",
)
def test_two_runs_of_a_model_are_refused(results, tmp_path, refused):
    refused.output(keep("1.0.0", tmp_path / "history", results, results))
    assert not (tmp_path / "history").exists()


@pytest.mark.parametrize(
    ("version", "content"),
    [
        bad_input.case(
            "runners",
            "`python -m benchmarks.history v1 results.json`",
            "'v1' is not a version; give it as 1.2.3",
            values=("v1", "{}"),
        ),
        bad_input.case(
            "runners",
            "`python -m benchmarks.history 1.2.3` of a file that make bench did not write",
            "results.json is not a results.json of make bench",
            values=("1.2.3", "{}"),
        ),
        bad_input.case(
            "runners",
            "`python -m benchmarks.history 1.2.3` of a run without the original",
            "no ratio to the original: measure `real` and `ours` in one run",
            values=("1.2.3", json.dumps({"summaries": {"mlp": []}, "conditions": {}})),
        ),
    ],
)
def test_what_is_no_result_is_refused(version, content, tmp_path, refused):
    results = tmp_path / "results.json"
    results.write_text(content, encoding="utf-8")
    refused.output(keep(version, tmp_path / "history", results))
    assert not (tmp_path / "history").exists()
