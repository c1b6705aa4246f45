"""Tests the results of `make soak`, and that its rounds can be made."""

import pytest
from click.testing import CliRunner

from benchmarks import soak
from tests import bad_input


def test_growth_is_measured_from_the_end_of_the_warm_up():
    values = [100.0] * 30 + [200.0] * 50 + [220.0] * 50
    curve = soak.Curve("memory", values)
    assert (curve.begin, curve.end) == (200.0, 220.0)
    assert curve.growth == pytest.approx(0.1)
    assert not curve.is_flat


def test_one_more_thread_than_at_the_beginning_is_growth():
    assert not soak.Curve("threads", [14.0] * 100 + [15.0] * 200).is_flat
    assert soak.Curve("threads", [20.0] * 10 + [14.0] * 290).is_flat


def test_a_reading_that_stands_out_is_none():
    values = [100.0] * 300
    values[40] = values[290] = 150.0
    assert soak.Curve("memory", values).is_flat


def test_a_curve_is_drawn_from_its_lowest_to_its_highest():
    line = soak.Curve("threads", [float(number) for number in range(1, 9)], warm_up=0).line()
    assert line == "threads      ▁▂▃▄▅▆▇█ 1 to 8 (+700.0%)"


@pytest.mark.parametrize(
    "arguments",
    [
        bad_input.case(
            "runners",
            '`make soak ARGS="--placements host,gpu"`',
            "'gpu' is not one of host, cores, strategy",
            values=["--placements", "host,gpu"],
        ),
        bad_input.case(
            "runners",
            '`make soak ARGS="--rounds 10"`',
            "10 is not in the range x>=35",
            values=["--rounds", "10"],
        ),
    ],
)
def test_a_run_that_would_show_nothing_is_refused(arguments, refused):
    refused.output(CliRunner().invoke(soak.main, arguments))


@pytest.mark.sweep
@pytest.mark.parametrize("placement", soak.PLACEMENTS)
def test_threads_and_descriptors_stay(placement, tmp_path):
    soak.make_rounds(placement, 20, tmp_path / "lines")
    memory, *counts = soak.curves_of(tmp_path / "lines", warm_up=10)
    assert [curve.growth for curve in counts] == [0, 0]
    assert memory.growth < 0.1
