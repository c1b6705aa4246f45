"""Tests the results of `make growth` and `make soak`, and that their points and rounds can be measured."""

import math

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import growth, soak
from benchmarks.growth import growth_of
from benchmarks.growth_points import PROGRAMS
from tests import bad_input


def costs(function, sizes=(10, 100, 1_000, 10_000), *, noise=0.0):
    generator = np.random.default_rng(0)
    return {
        size: [function(size) * (1 + noise * generator.standard_normal()) for _ in range(3)]
        for size in sizes
    }


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("fixed", [0.0, 1.0, 10.0])
def test_the_exponent_is_that_of_what_grows(exponent, fixed):
    found = growth_of(costs(lambda size: fixed + 0.03 * size**exponent))
    assert found.exponent == pytest.approx(exponent, abs=0.02)


def test_sizes_may_begin_with_none():
    found = growth_of(costs(lambda size: 2 + 0.1 * size, (0, 10, 50, 200)))
    assert found.exponent == pytest.approx(1.0, abs=0.02)
    assert found.each == pytest.approx(0.1)


def test_the_interval_holds_the_exponent_of_noisy_costs():
    found = growth_of(costs(lambda size: 1 + 0.01 * size, noise=0.05))
    assert found.low <= 1.0 <= found.high
    assert found.verdict == "linear or less"


def test_verdicts():
    assert growth_of(costs(lambda size: 1 + 1e-6 * size)).verdict == "flat"
    assert growth_of(costs(lambda size: 1 + 1e-3 * size)).verdict == "linear or less"
    assert growth_of(costs(lambda size: 1 + 1e-6 * size**1.5)).verdict == "faster than linear"


def test_one_round_condemns_nothing():
    rounds = costs(lambda size: 1 + 1e-6 * size**1.5)
    found = growth_of({size: values[:1] for size, values in rounds.items()})
    assert found.exponent == pytest.approx(1.5, abs=0.02)
    assert math.isnan(found.low)
    assert found.verdict == "open"


def test_two_sizes_are_no_exponent():
    with pytest.raises(ValueError, match=r"needs three sizes, got \[1, 2\]"):
        growth_of({1: [1.0], 2: [2.0]})


def point(axis, size, *, memory=500.0, **calls):
    return {
        "axis": axis,
        "size": size,
        "memory": memory,
        "calls": {call: {"cpu": cost, "wall": 10 * cost} for call, cost in calls.items()},
    }


def test_bounds_are_ratios_of_medians():
    points = [point("slices", 0, evaluate=cost) for cost in (1.0, 2.0, 9.0)]
    points += [point("slices", 50, evaluate=3.0), {"axis": "slices", "size": 50, "reason": "no"}]
    points.append(point("checkpoint", 4_096, save=1.0, write=0.5))
    found = growth.costs_of(points)
    ratios = {bound.axis: growth.ratio_of(bound, found) for bound in growth.BOUNDS}
    assert ratios["slices"] == 1.5
    # Of bytes the wall clock counts, for both.
    assert found["checkpoint"]["save"] == {4_096: [10.0]}
    assert ratios["checkpoint"] == 2.0
    assert math.isnan(ratios["rows"])


def test_a_run_is_told_in_a_table_and_a_picture(tmp_path):
    sizes = (3, 10, 30, 100, 300)
    points = [point("layers", size, train=0.5 + size**2 / 100) for size in (*sizes, *sizes)]
    found = growth.costs_of(points)
    growths = growth.growths_of(found)
    assert growths["layers", "train"].verdict == growth.FASTER
    assert growths["layers", growth.MEMORY].verdict == "flat"
    (table,) = growth.tables(found, growths)
    assert list(table.columns[2].cells) == ["3 to 300"] * 2
    (table,) = growth.tables(growth.costs_of(points[:1]), {})
    assert list(table.columns[6].cells) == ["too few sizes"] * 2
    growth.draw(found, growths, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_every_axis_has_a_program_and_sizes_for_an_exponent():
    assert growth.AXES.keys() == PROGRAMS.keys()
    for axis in growth.AXES.values():
        assert len(axis.sizes) >= 3
    for bound in growth.BOUNDS:
        assert {bound.over[1], bound.under[1]} <= set(growth.AXES[bound.axis].sizes)


SMALL = {"rows": 512, "predictions": 512, "hosts": 2, "checkpoint": 64}


# test_contenders.py has such a process in `make test`.
@pytest.mark.sweep
@pytest.mark.parametrize("axis", sorted(PROGRAMS))
def test_a_point_is_measured_in_a_process_of_its_own(axis):
    found = growth.measure(axis, SMALL.get(axis, 2), threads=1, timeout=300)
    assert "reason" not in found, found
    assert found["memory"] > 100
    assert found["calls"]
    for seconds in found["calls"].values():
        assert seconds["cpu"] >= 0
        assert seconds["wall"] > 0


def test_a_point_that_fails_says_why():
    assert growth.measure("rows", 512, threads=1, timeout=0.01) == {
        "reason": "took longer than 0.01 s"
    }


@bad_input.row(
    "runners",
    '`make growth ARGS="--axes rows,gpus"`',
    "'gpus' is not one of rows, variables, layers, cores, slices, predictions, checkpoint, input, hosts",
)
def test_an_axis_that_is_none_is_refused(refused):
    refused.output(CliRunner().invoke(growth.main, ["--axes", "rows,gpus"]))


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
