"""Tests the records of the benchmark: a release's rounds with their plot, and the page of targets."""

import json

import pytest
from click.testing import CliRunner

from benchmarks import history, speed_page
from benchmarks.report import read_rounds
from benchmarks.rounds import Machine
from tests import bad_input
from tests.benchmarks.test_summary import ROUNDS, measurement, results_of, rounds_of


@pytest.fixture
def results(tmp_path):
    return results_of(tmp_path / "results.json", ROUNDS)


def keep(version, folder, *results):
    return CliRunner().invoke(
        history.main, [version, *map(str, results), "--folder", str(folder)], catch_exceptions=False
    )


def test_the_rounds_of_a_release_are_kept_and_their_ratios_to_the_original_drawn(results, tmp_path):
    folder = tmp_path / "history"
    for version in ("0.10.0", "0.9.0", "0.10.0rc1"):
        assert keep(version, folder, results).exit_code == 0
    found = history.read(folder)
    assert list(found) == ["0.9.0", "0.10.0rc1", "0.10.0"]
    ratios = history.ratios_of(found["0.9.0"])
    # The original's own ratios are 1, and a contender that failed has none.
    assert list(ratios["mlp"]) == ["ours"]
    assert ratios["mlp"]["ours"]["train_steps_per_second"] == pytest.approx(2.4)
    assert ratios["mlp"]["ours"]["memory_mb"] == pytest.approx(1.08)
    assert (folder / history.PLOT).read_bytes().startswith(b"\x89PNG")


def test_rounds_of_several_runs_are_kept_together_and_more_can_be_added(results, tmp_path):
    other = results_of(tmp_path / "other.json", ROUNDS, "cnn", threads=4)
    folder = tmp_path / "history"
    kept = folder / "1.0.0.json.gz"
    assert keep("1.0.0", folder, results, other).exit_code == 0
    assert keep("1.0.0", folder, kept, results).exit_code == 0
    rounds, conditions = read_rounds([kept])
    assert conditions == [{"threads": 2}, {"threads": 4}, {"threads": 2}]
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


PAGE = """# Speed

Before.

Targets and results (0 of 0 reached).

Rounds: none.

| model | target | found | |
|---|---|---|---|
| old | row | 1 | reached |

After.
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "speed.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def write(page, *results):
    arguments = [*map(str, results), "--page", str(page)]
    return CliRunner().invoke(speed_page.main, arguments, catch_exceptions=False)


def test_rounds_of_several_runs_count_together_and_the_rest_of_the_page_stays(page, tmp_path):
    more = rounds_of({"real": measurement(100.0), "ours": measurement(500.0)})
    runs = [results_of(tmp_path / f"{n}.json", each) for n, each in enumerate((ROUNDS, more))]
    wide = results_of(tmp_path / "wide.json", more, "wide_and_deep")
    assert write(page, wide, *runs).exit_code == 0
    text = page.read_text(encoding="utf-8")
    # 2.4, 2, 2.5 and 5.
    assert (
        "| MLP, batch 64 | ours / real, train steps/s >= 2 | 2.45 (2.00-5.00) | reached |" in text
    )
    assert "Rounds: MLP, batch 64: 4; wide-and-deep, batch 512: 1." in text
    assert text.index("| MLP, batch 64 | ours / real, peak") < text.index("| wide-and-deep, batch")
    assert text.startswith("# Speed\n\nBefore.\n\nTargets and results (")
    assert text.endswith(" |\n\nAfter.\n")
    assert "old" not in text
    # What is written is what the next run replaces.
    assert write(page, wide, *runs).exit_code == 0
    assert page.read_text(encoding="utf-8") == text


def test_models_that_were_not_measured_keep_their_rows(page, tmp_path):
    kept = "| CNN, batch 128 | ours / real, train steps/s >= 1 | 1.04 (1.03-1.07) | reached |"
    rounds = "Rounds: MLP, batch 64: 9;\nCNN, batch 128: 13."
    old = PAGE.replace("| old |", f"{kept}\n| old |").replace("Rounds: none.", rounds)
    page.write_text(old, encoding="utf-8")
    measured = results_of(tmp_path / "mlp.json", ROUNDS)
    wide = results_of(tmp_path / "wide.json", ROUNDS, "wide_and_deep")
    assert write(page, wide, measured).exit_code == 0
    text = page.read_text(encoding="utf-8")
    told = "Rounds: MLP, batch 64: 3; CNN, batch 128: 13; wide-and-deep, batch 512: 3."
    assert told in text
    assert text.index("| MLP, batch 64 |") < text.index(kept) < text.index("| wide-and-deep, ")
    reached = text.count(" | reached |")
    assert f"({reached} of {text.count(' >= ') + text.count(' <= ')} reached, " in text


def test_rounds_on_a_busy_machine_do_not_count(page, tmp_path):
    first, *others = ROUNDS
    busy = type(first)(first.measured, {}, dict.fromkeys(first.measured, Machine(0.5, 0.0)))
    assert write(page, results_of(tmp_path / "results.json", [busy, *others])).exit_code == 0
    assert "Rounds: MLP, batch 64: 2." in page.read_text(encoding="utf-8")


@bad_input.row(
    "runners",
    "`python -m benchmarks.speed_page` of a file that is none of make bench",
    "results.json is not a results.json of make bench: KeyError('runs')",
)
def test_another_file_is_refused(page, tmp_path, refused):
    (tmp_path / "results.json").write_text("{}", encoding="utf-8")
    refused.output(write(page, tmp_path / "results.json"))
    assert page.read_text(encoding="utf-8") == PAGE
