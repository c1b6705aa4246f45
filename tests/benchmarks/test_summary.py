"""Tests the way from rounds to tables and results.json, and the comparison with gradient boosting."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from rich.console import Console

from benchmarks import tables
from benchmarks.contenders import CONTENDERS
from benchmarks.plan import FULL, QUICK, Measurement, Request
from benchmarks.processes import reason_of
from benchmarks.report import draw, interval_text, read_rounds, report_of
from benchmarks.rounds import Machine, Round
from benchmarks.summary import Interval, interval, summarize
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
        train_end_seconds=0.25,
        build_seconds=1.5,
    )


QUIET = Machine(others=0.01, mhz=0.0)


def rounds_of(*measured, failures=None):
    """Rounds on a quiet machine."""
    return [
        Round(each, failures if failures and i == 0 else {}, dict.fromkeys(each, QUIET))
        for i, each in enumerate(measured)
    ]


ROUNDS = rounds_of(
    {"real": measurement(100.0), "ours": measurement(240.0, memory=540, eval_rate=math.nan)},
    {"real": measurement(300.0), "ours": measurement(600.0, memory=540)},
    {"real": measurement(120.0), "ours": measurement(300.0, memory=540)},
    failures={"ours-8-cores": "ValueError: no cores here"},
)
NAMES = ("real", "ours", "ours-8-cores")


def results_of(path, rounds, model="mlp", threads=2):
    """Writes a results.json."""
    text = report_of({model: rounds}, NAMES, {"threads": threads}).json()
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def report():
    return report_of({"mlp": ROUNDS}, NAMES, {"threads": 2})


def test_ratios_are_those_within_a_round():
    real, ours, _ = summarize(ROUNDS, NAMES, baseline="real")
    assert real.cells["train_steps_per_second"].median == 120
    assert real.cells["train_steps_per_second"].ratio == Interval(1, 1, 1)
    assert ours.cells["train_steps_per_second"].median == 300
    # 240/100, 600/300 and 300/120: a round's effect on both cancels.
    ratio = ours.cells["train_steps_per_second"].ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.4, 2.0, 2.5))
    assert ratio.width == pytest.approx(0.5 / 2.4)
    assert ours.cells["memory_mb"].ratio.value == pytest.approx(1.08)


def test_an_interval_narrows_with_the_rounds():
    # The median of n normal values has a standard error of 1.2533 s / sqrt(n).
    values = np.random.default_rng(5).normal(10.0, 1.0, 400)
    found = interval(list(values))
    assert found.low < 10 < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * 1.2533 / 20, rel=0.4)
    assert interval([3.0, math.nan, 3.0]) == Interval(3.0, 3.0, 3.0)


def test_one_round_says_nothing_of_an_interval():
    found = interval([3.0])
    assert (found.value, math.isnan(found.low), math.isnan(found.high)) == (3.0, True, True)
    assert interval_text(found) == "3.00 (one round)"
    assert interval_text(Interval(436084.4, 1000, 500000)) == "436,084 (1,000-500,000)"


def test_a_number_that_noise_swallowed_is_left_out():
    _, ours, _ = summarize(ROUNDS, NAMES, baseline="real")
    assert ours.cells["eval_examples_per_second"].median == 100


def test_a_failed_contender_has_its_reason_and_no_numbers():
    failed = summarize(ROUNDS, NAMES, baseline="real")[-1]
    assert failed.failure == "ValueError: no cores here"
    assert not failed.cells


def test_without_the_baseline_there_are_numbers_and_no_ratios():
    (ours,) = summarize(rounds_of({"ours": measurement(270.0)}), ["ours"], baseline="real")
    assert ours.cells["train_steps_per_second"].median == 270
    assert math.isnan(ours.cells["train_steps_per_second"].ratio.value)


def test_targets_compare_the_contenders_that_are_there(report):
    found = {each.target.describe(): (each.ratio.value, each.verdict) for each in report.outcomes}
    assert found["ours / real, evaluate examples/s >= 2"] == (pytest.approx(1.0), "missed")
    assert found["ours / real, peak memory, MiB <= 1.1"] == (pytest.approx(1.08), "reached")
    assert not any("cores" in each or "bare" in each for each in found)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [((2.0, 2.2, 2.0), "reached"), ((2.0, 2.2, 1.99), "open"), ((1.9, 1.99, 1.5), "missed")],
)
def test_a_verdict_is_that_of_the_whole_interval(ratios, verdict):
    rates = [100 * ratio for ratio in ratios]
    rounds = rounds_of(*({"real": measurement(100), "ours": measurement(r)} for r in rates))
    (outcome,) = [
        each for each in outcomes({"mlp": rounds}) if each.target.field == "train_steps_per_second"
    ]
    assert outcome.target.bound == 2.0
    assert outcome.verdict == verdict


def test_a_target_may_be_the_best_of_several_or_a_number_itself():
    rounds = rounds_of(
        {
            "ours": measurement(100.0),
            "ours-compiled": measurement(300.0),
            "ours-auto": measurement(294.0),
            "ours-64-cores": measurement(math.nan),
        }
    )
    found = {
        each.target.describe(): (each.ratio.value, each.verdict)
        for each in outcomes({"mlp": rounds})
    }
    assert found == {
        "ours-auto / ours or ours-compiled, train steps/s >= 0.97": (pytest.approx(0.98), "open"),
        "ours, predict examples/s >= 500000": (10.0, "open"),
        "ours-64-cores, first step, s <= 60": (5.0, "open"),
    }


def test_a_contender_runs_on_its_models():
    assert [CONTENDERS["ours"].runs(model) for model in FULL] == [True, True, True]
    assert [CONTENDERS["ours-64-cores"].runs(model) for model in FULL] == [True, False, False]


def test_the_markdown_has_each_contender_and_the_reason_of_a_failure(report):
    text = report.markdown()
    assert "| ours, on the host | 300 (2.40x, 2.00-2.50) |" in text
    assert "ours-8-cores failed: ValueError: no cores here" in text
    assert "evaluation loss after training: 0.5 to 0.5" in text


def test_the_terminal_shows_the_same(report):
    console = Console(width=200, file=io.StringIO())
    report.print(console)
    text = console.file.getvalue()
    assert "300 (2.40x, 2.00-2.50)" in text
    assert "ours-8-cores failed: ValueError: no cores here" in text


def test_the_json_is_strict_and_its_rounds_are_those_written(report, tmp_path):
    text = report.json()
    fields = json.loads(text, parse_constant=pytest.fail)
    assert fields["summaries"]["mlp"][1]["cells"]["train_steps_per_second"]["median"] == 300
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")
    found = read_rounds([path])[0]["mlp"]
    assert [list(each.measured) for each in found] == [["real", "ours"]] * 3
    assert found[1] == ROUNDS[1]
    assert math.isnan(found[0].measured["ours"].eval_examples_per_second)


def test_models_come_in_the_benchmarks_order_whatever_the_order_of_the_files(tmp_path):
    paths = [results_of(tmp_path / f"{model}.json", ROUNDS, model) for model in ("cnn", "mlp")]
    rounds, conditions = read_rounds(paths)
    assert list(rounds) == ["mlp", "cnn"]
    assert conditions == [{"threads": 2}] * 2


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


def rows(count: int) -> pd.DataFrame:
    """Rows whose label follows from the day of the week alone."""
    days = pd.date_range("2024-01-01", periods=count, freq="D")
    weekday = days.weekday
    return pd.DataFrame(
        {
            "day": days.strftime("%Y-%m-%d"),
            "word": np.where(np.arange(count) % 3 == 0, None, "a"),
            "late": np.where(weekday >= 5, "yes", "no"),
            "delay": np.where(weekday >= 5, 3.0, 1.0),
        }
    )


def test_the_constant_of_classes_knows_how_often_each_is():
    data = rows(700).drop(columns="delay")
    constant, boosting = tables.losses(data, data[:70], "late")
    entropy = -(2 / 7 * math.log(2 / 7) + 5 / 7 * math.log(5 / 7))
    assert constant == pytest.approx(entropy)
    # Only a model that reads the date as a calendar can know.
    assert boosting < 0.01


def test_the_constant_of_numbers_is_the_mean():
    data = rows(700).drop(columns="late")
    constant, boosting = tables.losses(data, data[:70], "delay")
    # The variance of two values, 2 apart, of which 2 in 7 are the greater.
    assert constant == pytest.approx(4 * 2 / 7 * 5 / 7)
    assert boosting < 0.01


@pytest.mark.parametrize(
    ("project", "boosting", "verdict"),
    [
        (0.54, 0.5, "0.92"),
        (0.56, 0.5, "0.88 below 0.9"),
        (0.97, 1.2, "-"),
        (1.01, 1.2, "- below 0.9"),
    ],
)
def test_a_project_has_most_of_the_skill_of_boosting_over_all_splits(project, boosting, verdict):
    splits = [
        tables.Compared((1200, 1), 3, 1.0, constant=1.0, project=project + more, boosting=boosting)
        for more in (-0.02, 0.02)
    ]
    line = tables.summary("wages", splits)
    assert line[:5] == ["wages", "1,200 + 1", "3", "1 s", "2"]
    mean = 1 - project
    assert line[5] == f"{mean:.3f} ({mean - 0.02:.3f} to {mean + 0.02:.3f})"
    assert line[-1] == verdict


def test_the_splits_of_a_run_are_read_back(tmp_path):
    (tmp_path / "1" / "Split-eval").mkdir(parents=True)
    options = tf.io.TFRecordOptions("GZIP")
    with tf.io.TFRecordWriter(str(tmp_path / "1" / "Split-eval" / "data.gz"), options) as file:
        for word, number in ((b"a", 2), (None, 3)):
            features = {
                "word": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[word] if word else [])
                ),
                "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
            }
            file.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            )
    assert tables.rows_of(tmp_path, "eval").to_dict("list") == {
        "word": ["a", None],
        "number": [2, 3],
    }


def test_the_loss_of_answers_is_that_of_the_label():
    answers = pd.DataFrame({"bought": ["CH", "MM"], "probability_MM": [0.25, 0.5]})
    answers["probability_CH"] = 1 - answers["probability_MM"]
    expected = -(math.log(0.75) + math.log(0.5)) / 2
    assert tables.loss_of_answers(answers, "bought") == pytest.approx(expected)
    answers = pd.DataFrame({"price": [1.0, 3.0], "prediction": [2.0, 1.0]})
    assert tables.loss_of_answers(answers, "price") == pytest.approx((1 + 4) / 2)
