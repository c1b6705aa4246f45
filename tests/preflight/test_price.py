"""What a training costs: the rows that its input_fn gives the hosts of a slice, and its price by the formula."""

import dataclasses
import json
import re

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.preflight.reports import fitting_step, report
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._input_speed import InputError, InputSpeed, measure_input
from tfx_tpu_trainer.preflight._price import (
    Prices,
    TrainingLength,
    choose,
    read_duration,
    training_cost,
)
from tfx_tpu_trainer.preflight._report import PreflightReport
from tfx_tpu_trainer.preflight._report_files import render_sweep_page
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS, Estimate
from tfx_tpu_trainer.preflight._sweep import Sweep, SweepEntry


def _measure(input_fn, *, tpu="v5e:2x4", batch_size=64, seconds=0.2):
    return measure_input(
        input_fn, tpu_slice=find_slice(tpu), batch_size=batch_size, seconds=seconds, params={}
    )


def _dataset(count, *, fails_at=None):
    def input_fn(params):
        def one(number):
            if fails_at is not None:
                with tf.control_dependencies(
                    [tf.debugging.assert_less(number, tf.constant(fails_at, tf.int64))]
                ):
                    number = tf.identity(number)
            return tf.fill([3], tf.cast(number, tf.float32)), tf.cast(number, tf.int32)

        rows = tf.data.Dataset.range(count).map(one)
        return rows.batch(params["batch_size"], drop_remainder=True)

    return input_fn


SPEED = InputSpeed(
    seconds=2.0,
    rows=4000,
    ends=0,
    cpus=2,
    cpus_used=1.9,
    row_bytes=1e6,
    hosts=2,
    host_cpus=112,
    chips=8,
    to_chip_gb_per_s=16.0,
)


def test_rows_and_bytes_are_those_of_the_batches():
    speed = _measure(_dataset(10**9))
    assert speed.rows > 0 and speed.rows % 64 == 0 and speed.ends == 0
    assert speed.row_bytes == 3 * 4 + 4
    assert (speed.hosts, speed.host_cpus, speed.chips) == (1, 224, 8)


def test_each_host_reads_its_share_of_a_batch():
    speed = _measure(_dataset(10**9), tpu="v5e:4x4", batch_size=128)
    assert speed.hosts == find_slice("v5e:4x4").hosts > 1
    assert speed.rows % (128 // speed.hosts) == 0


def test_an_input_that_ends_is_read_again_and_that_is_said():
    # Two batches a turn, of which the first turn's first one does not count.
    speed = _measure(_dataset(128), seconds=2.0)
    assert speed.ends > 0 and speed.rows >= 64 * speed.ends


def test_speed_scales_by_cpus_and_hosts():
    assert SPEED.rows_per_second == 2000
    assert SPEED.slice_rows_per_second == pytest.approx(2000 / 2 * 112 * 2)
    assert SPEED.step_seconds(1024) == pytest.approx(1024 / 224_000)
    # 128 rows of a megabyte go to each chip.
    assert SPEED.transfer_seconds(1024) == pytest.approx(128e6 / 16e9)


def test_a_report_names_the_limit_and_keeps_it_as_json():
    made = report(input=SPEED)
    limit = made.input_limit
    assert limit.input_rows == SPEED.slice_rows_per_second
    assert limit.limited_by == ("input" if limit.estimated_rows > 224_000 else "chips")
    values = made.to_json()
    assert values["input"]["limited_by"] == limit.limited_by
    assert PreflightReport.from_json(values) == made
    # A report of an earlier version has neither key.
    del values["input"], values["steps"][0]["estimate"]
    assert PreflightReport.from_json(values).input is None


@row(
    "preflight",
    "an input_fn that fails while `--measure_input` reads it",
    "--measure_input: input_fn fails after ",
    "rows: InvalidArgumentError",
)
def test_an_input_that_fails_is_one_line(refused):
    with refused(InputError):
        _measure(_dataset(10**9, fails_at=1000), seconds=30.0)


@row(
    "preflight",
    "an input_fn without a full batch, for `--measure_input`",
    "--measure_input: input_fn's data ends before its first row",
)
def test_an_input_without_rows_is_one_line(refused):
    with refused(InputError):
        _measure(_dataset(3))


PRICES = Prices(currency="EUR", chip_hour={"v5e": 1.5, "v5p": 4.0}, source="prices.json")


def _priced(seconds, tpu="v5e:2x4", **values):
    """A report whose step of 1,024 rows is estimated to take so long."""
    estimated = Estimate(
        compute_seconds=seconds,
        memory_seconds=0.0,
        collective_seconds=0.0,
        launch_seconds=0.0,
        rows=1024,
    )
    step = dataclasses.replace(fitting_step(), estimate=estimated)
    return report(step, tpu=tpu, **values)


def test_the_cost_is_time_by_chips_by_price():
    length = TrainingLength(rows_per_epoch=1024 * 900, epochs=10)
    found = training_cost(_priced(0.4), length, PRICES, start_up_seconds=900)
    assert found.hour_price == 8 * 1.5
    # A quarter of an hour of start-up, and an hour of steps.
    assert found.seconds == pytest.approx(900 + 9000 * 0.4)
    assert found.cost == pytest.approx(3.0 + 12.0)
    assert found.epoch_cost == pytest.approx(1.2)
    # A published training may take longer than its estimate.
    assert found.slow_seconds == pytest.approx(900 + 3600 / (1 + PUBLISHED_ERRORS.low))


def test_steps_may_be_given_in_the_place_of_epochs():
    found = training_cost(
        _priced(0.4), TrainingLength(train_steps=9000), PRICES, start_up_seconds=0
    )
    assert found.seconds == pytest.approx(3600) and found.epoch_cost is None
    # Steps of half as many rows as those of the report, 1,024.
    half = TrainingLength(train_steps=9000, rows_per_step=512)
    found = training_cost(_priced(0.4), half, PRICES, start_up_seconds=0)
    assert found.seconds == pytest.approx(1800)


def test_an_input_that_is_slower_than_the_chips_sets_the_time():
    speed = InputSpeed(
        seconds=1.0,
        rows=100,
        ends=0,
        cpus=2,
        cpus_used=2.0,
        row_bytes=4.0,
        hosts=1,
        host_cpus=2,
        chips=8,
        to_chip_gb_per_s=16.0,
    )
    length = TrainingLength(train_steps=10)
    found = training_cost(_priced(0.4, input=speed), length, PRICES, start_up_seconds=0)
    assert found.limited_by_input and found.seconds == pytest.approx(10 * 10.24)


def _sweep(*costs, **values):
    """A sweep of a step of 1,024 rows: for each slice how long it takes there, or None where it does not fit."""
    entries = [
        SweepEntry(
            tpu=tpu,
            batch_size=1024,
            outcome="too large" if seconds is None else "fits",
            detail="20 GiB of 15.8 GiB HBM (127%)" if seconds is None else "1 GiB of 15.8 GiB HBM",
            report=report() if seconds is None else _priced(seconds, tpu=tpu),
        )
        for tpu, seconds in costs
    ]
    given = {"length": TrainingLength(train_steps=9000), "prices": PRICES, "start_up_seconds": 0}
    return Sweep(model="clicks", steps=("train",), entries=tuple(entries), **{**given, **values})


@pytest.mark.parametrize(
    ("slices", "values", "chosen", "why"),
    [
        # 12 and 16 EUR an hour: the larger slice takes half as long.
        ([("v5e:2x4", 0.4), ("v5p:2x2x1", 0.4)], {}, "v5e:2x4", "the cheapest"),
        (
            [("v5e:2x4", 0.4), ("v5p:2x2x2", 0.2)],
            {"deadline": 3000.0},
            "v5p:2x2x2",
            "the cheapest within 50 min",
        ),
        (
            [("v5e:4x4", 0.1), ("v5e:2x4", 0.2), ("v5e:2x2", 0.41)],
            {},
            "v5e:2x2",
            "the fewest chips for about the price of v5e:4x4",
        ),
        # Start-up is paid for on every chip, so it decides where the steps take no time.
        ([("v5e:2x4", 1e-6), ("v5e:1x1", 8e-6)], {"start_up_seconds": 300}, "v5e:1x1", "the cheapest"),
        ([("v5e:1x1", None), ("v5e:2x4", 0.4)], {"prices": None}, "v5e:2x4", "the cheapest"),
        ([("v5e:2x4", 0.4)], {"deadline": 60.0}, None, None),
        ([("v5e:2x4", 0.4)], {"length": None}, None, None),
    ],
)  # fmt: skip
def test_a_sweep_chooses_the_fewest_chips_of_about_the_least_price(slices, values, chosen, why):
    found = _sweep(*slices, **values)
    assert [row.tpu for row in found.rows] == [tpu for tpu, _ in slices]
    assert {row.tpu: row.why for row in found.rows if row.chosen} == (
        {chosen: why} if chosen else {}
    )
    assert found.to_json()["choice"] == (chosen and {"tpu": chosen, "why": why})
    assert choose(found.costs, found.deadline) is found.choice


def test_the_page_of_a_sweep_has_a_row_for_each_slice_with_price_and_reason():
    page = render_sweep_page(
        _sweep(("v5e:1x1", None), ("v5e:2x4", 0.4), ("v5e:4x4", 0.4), start_up_seconds=300)
    )
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    # 9,000 steps of 0.4 s are an hour, after five minutes, of 8 and of 16 chips at 1.50 EUR.
    assert "The choice: v5e:2x4, 13.00 EUR: the cheapest" in words
    assert "The training has 9,000 steps; before it, 5 min of start-up are paid for." in words
    assert "v5e:1x1 1 1,024 too large" in words and "20 GiB of 15.8 GiB HBM (127%)" in words
    assert "400 ms 1 h 5 min 26.00 EUR" in words and "13.00 EUR more than on v5e:2x4" in words
    assert page.count('<tr class="chosen">') == 1
    without = render_sweep_page(_sweep(("v5e:2x4", 0.4), length=None))
    assert "No slice is chosen" in without and "why</th>" not in without


@pytest.mark.parametrize(
    ("text", "seconds"), [("4h", 14_400), ("90m", 5400), ("1h30m", 5400), ("1.5d", 129_600)]
)
def test_durations(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "content",
    [
        case("preflight", f"a price file {shown}", "prices.json", *says, values=content)
        for shown, content, *says in (
            ("that is not valid JSON", "{", "is not valid JSON: "),
            ("without currency", {"chip_hour": {}}, "contains no prices: write it like"),
            ("that is a list", [], "contains no prices: write it like"),
            (
                "with a chip that is unknown",
                {"currency": "USD", "chip_hour": {"v9": 1}},
                "unknown chip 'v9'; use any of v2, v3",
            ),
            (
                "with a price below 0",
                {"currency": "USD", "chip_hour": {"v5e": -1}},
                "the price of v5e is -1; give a number of at least 0",
            ),
            (
                "with a price that is not a number",
                {"currency": "USD", "chip_hour": {"v5e": "1.2"}},
                "the price of v5e is '1.2'; give a number of at least 0",
            ),
        )
    ],
)
def test_a_bad_price_file_is_one_line(tmp_path, content, refused):
    path = tmp_path / "prices.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    with refused(ValueError):
        Prices.read(str(path))
