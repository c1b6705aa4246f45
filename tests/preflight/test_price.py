"""What a training costs: the rows that its input_fn gives the hosts of a slice, and its price by the formula."""

import collections
import dataclasses
import json
import math
import random
import re

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.preflight.reports import fitting_step, report
from tfx_tpu_trainer.hardware import find_slice, known_slices
from tfx_tpu_trainer.preflight._input_speed import InputError, InputSpeed, measure_input
from tfx_tpu_trainer.preflight._price import Prices, TrainingLength, read_duration, training_cost
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
    """Returns a sweep of a step of 1,024 rows: for each slice its duration, or None if it does not fit."""
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
        # As much on any of them.
        ([("v5e:4x4", 0.1), ("v5e:2x4", 0.2), ("v5e:2x2", 0.4)], {}, "v5e:2x2", "the cheapest"),
        # Start-up is paid for on every chip, so it decides if the steps take no time.
        ([("v5e:2x4", 1e-6), ("v5e:1x1", 8e-6)], {"start_up_seconds": 300}, "v5e:1x1", "the cheapest"),
        ([("v5e:1x1", None), ("v5e:2x4", 0.4)], {"prices": None}, "v5e:2x4", "the cheapest"),
        ([("v5e:2x4", 0.4)], {"deadline": 60.0}, None, None),
        ([("v5e:2x4", 0.4)], {"length": None}, None, None),
    ],
)  # fmt: skip
def test_a_sweep_chooses_the_cheapest_slice(slices, values, chosen, why):
    found = _sweep(*slices, **values)
    assert [row.tpu for row in found.rows] == [tpu for tpu, _ in slices]
    assert {row.tpu: row.why for row in found.rows if row.chosen} == (
        {chosen: why} if chosen else {}
    )
    choice = {"tpu": chosen, "way": "on demand", "batch_size": 1024, "why": why}
    assert found.to_json()["choice"] == (chosen and choice)


def _by_hand(slices, prices, steps, start_up, deadline):
    """The cheapest of all slices and ways whose latest end meets the deadline, by the formulas of the documentation."""
    best = None
    for tpu, seconds in slices:
        if seconds is None:
            continue
        slow = start_up + steps * seconds / (1 + PUBLISHED_ERRORS.low)
        spot = slow + math.ceil(slow / 14_400) * (start_up + 600)
        latest = {"chip_hour": slow, "spot": spot, "flex_start": slow + 86_400}
        for way, ends in latest.items():
            price = prices[way].get(tpu.partition(":")[0])
            if price is None or ends > deadline or (way == "flex_start" and slow > 7 * 86_400):
                continue
            cost = (start_up + steps * seconds) / 3600 * price * find_slice(tpu).num_chips
            if best is None or cost < best[0]:
                best = cost, tpu, way.replace("_", "-").replace("chip-hour", "on demand")
    return best


def test_the_choice_is_the_cheapest_row_in_time_of_200_random_sweeps():
    draw = random.Random(7)
    names = [each.name for each in known_slices() if each.chip.generation in ("v5e", "v5p", "v6e")]
    ways = collections.Counter()
    for _ in range(200):
        slices = [
            (tpu, None if draw.random() < 0.2 else 10 ** draw.uniform(-3, 1))
            for tpu in draw.sample(sorted(set(names)), draw.randint(1, 8))
        ]
        prices = {"chip_hour": {chip: draw.uniform(0.5, 6) for chip in ("v5e", "v5p", "v6e")}}
        for way in ("spot", "flex_start"):
            chips = draw.sample(["v5e", "v5p", "v6e"], draw.randint(0, 3))
            prices[way] = {chip: draw.uniform(0.2, 3) for chip in chips}
        steps, start_up, deadline = 9000, draw.uniform(0, 900), 10 ** draw.uniform(2, 6.5)
        found = _sweep(
            *slices,
            prices=Prices.of({"currency": "EUR", **prices}, "prices.json"),
            start_up_seconds=start_up,
            deadline=deadline,
        )
        best, choice = _by_hand(slices, prices, steps, start_up, deadline), found.choice
        ways[best and best[2]] += 1
        if best is None:
            assert choice is None and found.missed
            continue
        assert (choice.tpu, choice.way) == best[1:] and choice.cost == pytest.approx(best[0])
        assert found.chosen_row.cost == choice and not found.missed
    # Every kind of outcome is among them.
    assert set(ways) == {None, "on demand", "spot", "flex-start"} and min(ways.values()) >= 10


@pytest.mark.parametrize(
    ("slices", "says"),
    [
        (
            [("v5e:1x1", 0.8), ("v5e:2x4", 0.4)],
            (
                "No slice finishes within 30 min. The nearest is v5e:2x4, which takes 1 h 16 min at the slow end: give "
                "--deadline 76m, faster slices with --tpu, or a training of at most 3,187 steps of 1,024 rows."
            ),
        ),
        (
            [("v5e:1x1", None)],
            (
                "The model trains on none of these slices. The nearest is v5e:1x1 with 1,024 rows (20 GiB of 15.8 GiB "
                "HBM (127%)): give other batch sizes with --batch_size, or other slices with --tpu."
            ),
        ),
    ],
)
def test_a_sweep_without_a_choice_names_the_nearest_slice(slices, says):
    # An hour at the slow end for 9,000 steps of 0.34 s, and five minutes before it.
    found = _sweep(*slices, start_up_seconds=300, deadline=1800.0)
    assert found.missed == says
    if found.costs:
        # Its suggestion would be enough.
        length = TrainingLength(train_steps=3187)
        assert dataclasses.replace(found, length=length).choice.tpu == "v5e:2x4"
        assert dataclasses.replace(found, deadline=76 * 60.0).choice.tpu == "v5e:2x4"


def test_the_page_of_a_sweep_has_a_row_for_each_slice_with_price_and_reason():
    page = render_sweep_page(
        _sweep(("v5e:1x1", None), ("v5e:2x4", 0.4), ("v5e:4x4", 0.4), start_up_seconds=300)
    )
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))
    # 9,000 steps of 0.4 s are an hour, after five minutes, of 8 and of 16 chips at 1.50 EUR.
    assert "The choice: v5e:2x4, 13.00 EUR: the cheapest" in words
    assert "The training has 9,000 steps; before it, 5 min of start-up are paid for." in words
    assert "1,024 rows in a step, 128 on each core" in words
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
            (
                "with a Spot price below 0",
                {"currency": "USD", "chip_hour": {"v5e": 1}, "spot": {"v5e": -1}},
                "the spot price of v5e is -1; give a number of at least 0",
            ),
            (
                "with one price for all flex-start chips",
                {"currency": "USD", "chip_hour": {"v5e": 1}, "flex_start": 0.7},
                'contains no prices: write it like {"currency": "USD"',
            ),
        )
    ],
)
def test_a_bad_price_file_is_one_line(tmp_path, content, refused):
    path = tmp_path / "prices.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    with refused(ValueError):
        Prices.read(str(path))
