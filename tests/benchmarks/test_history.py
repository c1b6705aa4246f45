"""What is kept of a release's benchmark, and its plot over versions."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import history
from benchmarks.results import rounds_of
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


def test_the_rounds_of_a_release_are_kept_and_their_ratios_to_the_original_drawn(results, tmp_path):
    folder = tmp_path / "history"
    for version in ("0.10.0", "0.9.0", "0.10.0rc1"):
        assert keep(version, folder, results).exit_code == 0
    found = history.read(folder)
    assert list(found) == ["0.9.0", "0.10.0rc1", "0.10.0"]
    assert found["0.9.0"]["conditions"] == {"runs": [{"threads": 2}]}
    ratios = history.ratios(found["0.9.0"])
    # The original's own ratios are 1, and a contender that failed has none.
    assert list(ratios["mlp"]) == ["ours"]
    assert ratios["mlp"]["ours"]["train_steps_per_second"]["value"] == pytest.approx(2.4)
    assert ratios["mlp"]["ours"]["memory_mb"]["value"] == pytest.approx(1.1)
    assert (folder / history.PLOT).read_bytes().startswith(b"\x89PNG")


def test_rounds_of_several_runs_are_kept_together_and_more_can_be_added(results, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(report_of({"cnn": ROUNDS}, NAMES, {"threads": 4}).json(), encoding="utf-8")
    folder = tmp_path / "history"
    assert keep("1.0.0", folder, results, other).exit_code == 0
    assert keep("1.0.0", folder, folder / "1.0.0.json", results).exit_code == 0
    found = history.read(folder)["1.0.0"]
    assert found["conditions"] == {"runs": [{"threads": 2}, {"threads": 4}, {"threads": 2}]}
    rounds = rounds_of(found)
    assert {model: len(each) for model, each in rounds.items()} == {"mlp": 6, "cnn": 3}
    assert rounds["mlp"][1] == rounds["mlp"][4] == ROUNDS[1]


@pytest.mark.parametrize(
    ("version", "content"),
    [
        bad_input.case(
            "runners",
            "`python -m benchmarks.history v1 results.json`",
            "'v1' is not a version; give it as 1.2.3, or 1.2.3rc1",
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
            "there is no ratio to the original: measure `real` and `ours` in one run",
            values=("1.2.3", json.dumps({"runs": [], "conditions": {}})),
        ),
    ],
)
def test_what_is_no_result_is_refused(version, content, tmp_path, refused):
    results = tmp_path / "results.json"
    results.write_text(content, encoding="utf-8")
    refused.output(keep(version, tmp_path / "history", results))
    assert not (tmp_path / "history").exists()
