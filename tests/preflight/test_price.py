"""What a training costs, against its formula; bad price files."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.bad_input import case
from tests.preflight.reports import fitting_step, report
from tfx_tpu_trainer.preflight._input_speed import InputSpeed
from tfx_tpu_trainer.preflight._price import (
    Prices,
    TrainingLength,
    cheapest,
    read_duration,
    training_cost,
)
from tfx_tpu_trainer.preflight._step_time import PUBLISHED_ERRORS, Estimate

PRICES = Prices(currency="EUR", chip_hour={"v5e": 1.5, "v5p": 4.0}, source="prices.json")


def _report(seconds, tpu="v5e:2x4", **values):
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
    found = training_cost(_report(0.4), length, PRICES)
    assert found.hour_price == 8 * 1.5
    assert found.seconds == pytest.approx(9000 * 0.4)
    assert found.cost == pytest.approx(12.0)
    assert found.epoch_cost == pytest.approx(1.2)
    # A published training may take longer than its estimate.
    assert found.slow_seconds == pytest.approx(3600 / (1 + PUBLISHED_ERRORS.low))


def test_steps_may_be_given_in_the_place_of_epochs():
    found = training_cost(_report(0.4), TrainingLength(train_steps=9000), PRICES)
    assert found.seconds == pytest.approx(3600) and found.epoch_cost is None


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
    found = training_cost(_report(0.4, input=speed), length, PRICES)
    assert found.limited_by_input and found.seconds == pytest.approx(10 * 10.24)


def test_the_cheapest_slice_is_among_those_that_are_in_time():
    length = TrainingLength(train_steps=9000)
    slow = training_cost(_report(0.4), length, PRICES)
    fast = training_cost(_report(0.2, tpu="v5p:2x2x2"), length, PRICES)
    assert slow.cost < fast.cost
    assert cheapest([slow, fast], None) is slow
    assert cheapest([slow, fast], slow.seconds * 0.9) is fast
    assert cheapest([slow, fast], 60.0) is None


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
