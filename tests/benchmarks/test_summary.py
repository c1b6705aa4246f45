"""The numbers of the tables, from given measurements."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from benchmarks.contenders import CONTENDERS
from benchmarks.plan import FULL, QUICK, Measurement, Request
from benchmarks.plot import draw
from benchmarks.processes import reason_of
from benchmarks.report import Report
from benchmarks.summary import summarize
from benchmarks.targets import outcomes


def measurement(rate: float, *, eval_rate: float = 100.0, memory: float = 500.0) -> Measurement:
    return Measurement(
        first_step_seconds=5.0,
        train_steps_per_second=rate,
        eval_examples_per_second=eval_rate,
        predict_examples_per_second=10.0,
        memory_mb=memory,
        train_memory_mb=400.0,
        segment_rates=(1.0, 2.0),
        steps=10,
        eval_loss=0.5,
        tensorflow="2.16.2",
    )


MEASURED = {
    "real": [measurement(100.0, memory=500), measurement(300.0), measurement(120.0)],
    "ours": [measurement(240.0, memory=550, eval_rate=math.nan), measurement(300.0, memory=550)],
    "ours-8-cores": [],
}
FAILURES = {"ours-8-cores": "ValueError: no cores here"}


@pytest.fixture
def report():
    summaries = {"mlp": summarize(MEASURED, FAILURES, baseline="real")}
    return Report(
        summaries=summaries,
        outcomes=outcomes(summaries),
        baseline="real",
        conditions={"threads": 2},
        runs=[{"model": "mlp", "contender": "ours", "load": 0.5}],
    )


def test_ratios_are_those_of_the_medians():
    real, ours, _ = summarize(MEASURED, FAILURES, baseline="real")
    assert real.cells["train_steps_per_second"].median == 120
    assert real.cells["train_steps_per_second"].ratio == 1
    assert ours.cells["train_steps_per_second"].median == 270
    assert ours.cells["train_steps_per_second"].ratio == pytest.approx(2.25)
    assert ours.cells["train_steps_per_second"].spread == pytest.approx(60 / 270)
    assert ours.cells["memory_mb"].ratio == pytest.approx(1.1)


def test_a_number_that_noise_swallowed_is_left_out():
    _, ours, _ = summarize(MEASURED, FAILURES, baseline="real")
    assert ours.cells["eval_examples_per_second"].median == 100


def test_a_failed_contender_has_its_reason_and_no_numbers():
    failed = summarize(MEASURED, FAILURES, baseline="real")[-1]
    assert failed.failure == "ValueError: no cores here"
    assert not failed.cells


def test_without_the_baseline_there_are_numbers_and_no_ratios():
    (ours,) = summarize({"ours": MEASURED["ours"]}, {}, baseline="real")
    assert ours.cells["train_steps_per_second"].median == 270
    assert math.isnan(ours.cells["train_steps_per_second"].ratio)


def test_targets_compare_the_contenders_that_are_there(report):
    found = {each.target.describe(): (each.ratio, each.reached) for each in report.outcomes}
    assert found["ours / real, train steps/s >= 2"] == (pytest.approx(2.25), True)
    assert found["ours / real, evaluate examples/s >= 2"] == (pytest.approx(1.0), False)
    assert found["ours / real, peak memory, MiB <= 1.15"] == (pytest.approx(1.1), True)
    assert not any("cores" in each or "bare" in each for each in found)


def test_a_target_may_be_the_best_of_several_or_a_number_itself():
    measured = {
        "ours": [measurement(100.0)],
        "ours-compiled": [measurement(300.0)],
        "ours-auto": [measurement(294.0)],
        "ours-64-cores": [measurement(math.nan)],
    }
    found = {
        each.target.describe(): (each.ratio, each.reached)
        for each in outcomes({"mlp": summarize(measured, {}, baseline="real")})
    }
    assert found == {
        "ours-auto / ours or ours-compiled, train steps/s >= 0.97": (pytest.approx(0.98), True),
        "ours-64-cores, first step, s <= 60": (5.0, True),
    }


def test_contenders_that_no_target_is_close_to_run_once():
    assert [CONTENDERS["ours"].runs("cnn", repetition) for repetition in (0, 1)] == [True, True]
    assert [CONTENDERS["keras3"].runs("cnn", repetition) for repetition in (0, 1)] == [True, False]
    assert [CONTENDERS["ours-64-cores"].runs(model, 0) for model in FULL] == [True, False, False]


def test_the_markdown_has_each_contender_and_the_reason_of_a_failure(report):
    text = report.markdown()
    assert "| ours, on the host | 270 (2.25x ±11%) |" in text
    assert "ours-8-cores failed: ValueError: no cores here" in text
    assert "evaluation loss after training: 0.5 to 0.5" in text


def test_the_terminal_shows_the_same(report):
    console = Console(width=160, file=io.StringIO())
    report.print(console)
    text = console.file.getvalue()
    assert "270 (2.25x ±11%)" in text
    assert "ours-8-cores failed: ValueError: no cores here" in text


def test_the_json_is_strict_and_complete(report):
    fields = json.loads(report.json(), parse_constant=pytest.fail)
    assert fields["summaries"]["mlp"][1]["cells"]["train_steps_per_second"]["median"] == 270
    assert fields["runs"] == [{"model": "mlp", "contender": "ours", "load": 0.5}]


def test_the_plot_is_a_picture(report, tmp_path):
    draw(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("errors", "exit_code", "reason"),
    [
        (
            "noise\nTraceback (most recent call last):\n  File\nValueError: 3\nadvice\n",
            1,
            "ValueError: 3",
        ),
        ("only a line", 1, "only a line"),
        ("", 7, "exit code 7"),
        ("whatever", -9, "ended by signal 9"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(errors, exit_code, reason):
    assert reason_of(errors, exit_code) == reason


def test_requests_and_measurements_survive_json():
    request = Request(
        contender="ours", model="cnn", plan=QUICK["cnn"], data_folder="d", model_dir="m"
    )
    assert Request.from_json(request.to_json()) == request
    assert Measurement.from_json(measurement(3.0).to_json()) == measurement(3.0)


@pytest.mark.parametrize("plan", [*FULL.values(), *QUICK.values()])
def test_everything_is_whole_loops_of_every_contender(plan):
    # Keras 3 drops the batches of a loop that the data does not fill.
    for steps in (plan.segment_steps, *plan.eval_batches, *plan.predict_batches):
        assert steps % plan.loop_steps == 0
    assert plan.loop_steps % 25 == 0
