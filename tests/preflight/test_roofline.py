"""The bounds of a step, against their formulas."""

from __future__ import annotations

import pytest

from tfx_tpu_trainer.hardware import CHIPS, find_slice
from tfx_tpu_trainer.preflight._step_time import Roofline, roofline


def _bound(name, **given):
    values = {"flops": 0.0, "bytes_accessed": 0.0, "collective_bytes": 0.0, "num_replicas": 1}
    return roofline(find_slice(name), **{**values, **given})


@pytest.mark.parametrize(
    ("name", "per_second"),
    # A device of v2 and v3 is half a chip.
    [("v5e:1x1", 197e12), ("v5p:2x2x1", 459e12), ("v4:2x2x1", 275e12), ("v3:2x2", 61.5e12)],
)
def test_operations_take_as_long_as_the_peak_rate_of_a_device_says(name, per_second):
    bound = _bound(name, flops=per_second / 4)
    assert bound.step_seconds == bound.compute_seconds == pytest.approx(0.25)
    assert bound.limited_by == "compute"


@pytest.mark.parametrize(("name", "per_second"), [("v5e:1x1", 819e9), ("v2:2x2", 350e9)])
def test_bytes_take_as_long_as_the_bandwidth_of_a_device_says(name, per_second):
    bound = _bound(name, bytes_accessed=per_second / 2)
    assert bound.step_seconds == bound.memory_seconds == pytest.approx(0.5)
    assert bound.limited_by == "memory"


@pytest.mark.parametrize(
    ("name", "replicas", "chips"),
    [("v5e:2x4", 8, 8), ("v5e:2x4", 4, 4), ("v3:4x4", 32, 16), ("v3:2x2", 2, 1), ("v5e:1x1", 1, 1)],
)
def test_sums_cross_the_links_between_chips_only(name, replicas, chips):
    links = CHIPS[name.split(":")[0]].ici_gb_per_s * 1e9
    bound = _bound(name, collective_bytes=links, num_replicas=replicas)
    assert bound.collective_seconds == pytest.approx(2 * (chips - 1) / chips)


def test_the_longest_part_is_the_bound():
    bound = Roofline(compute_seconds=1e-3, memory_seconds=2e-3, collective_seconds=4e-3, rows=1000)
    assert (bound.step_seconds, bound.limited_by) == (4e-3, "collectives")
    assert bound.examples_per_second == pytest.approx(250_000)


def test_without_rows_or_work_no_rate_is_claimed():
    assert _bound("v5e:1x1", flops=1e9).examples_per_second is None
    assert _bound("v5e:1x1", rows=8).examples_per_second is None
