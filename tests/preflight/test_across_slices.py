"""Several slices: what crosses the network, and how long that takes at least."""

from __future__ import annotations

import pytest

from tests.preflight.lowered import CHECK_ONLY
from tests.preflight.reports import compiled_step, lowered_step, report
from tests.preflight.test_run import COLUMNS, dense_model, input_fn
from tfx_tpu_trainer.hardware import CHIPS, find_slice
from tfx_tpu_trainer.preflight import StepReport, preflight
from tfx_tpu_trainer.preflight._step_time import bytes_sent, check_slices, seconds_at_least

GIB = 2**30


@pytest.mark.parametrize(("slices", "share"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75)])
def test_a_sum_sends_twice_what_the_other_slices_hold(slices, share):
    sent = bytes_sent(GIB, num_cores_per_replica=1, num_slices=slices)
    assert sent == share * GIB
    # Each core of a replica sums its own part.
    assert bytes_sent(GIB, num_cores_per_replica=4, num_slices=slices) == 4 * sent


@pytest.mark.parametrize(
    ("name", "gigabits"), [("v5e:16x16", 6400), ("v5p:2x2x1", 200), ("v6e:2x4", 800)]
)
def test_all_machines_of_a_slice_send_at_once(name, gigabits):
    assert seconds_at_least(gigabits * 1e9 / 8, find_slice(name)) == pytest.approx(1)


def test_the_network_may_be_the_limit():
    # Each device gives 2.5 GB to the sums: four slices send 3.75 GB each over 8 x 25 Gbit/s.
    step = StepReport.of(
        lowered_step(),
        compiled_step(collective_bytes=2_500_000_000),
        tpu_slice=find_slice("v5e:2x4"),
        num_slices=4,
    )
    assert step.batch_size == 4 * 8 * 128
    assert step.network_bytes == 3_750_000_000
    assert step.roofline.network_seconds == pytest.approx(0.15)
    assert (step.roofline.limited_by, step.roofline.step_seconds) == (
        "network",
        pytest.approx(0.15),
    )
    one = StepReport.of(lowered_step(), compiled_step(), tpu_slice=find_slice("v5e:2x4"))
    assert (one.network_bytes, one.roofline.network_seconds) == (0, 0)


def test_slices_share_the_rows():
    given = {"tpu": "v5e:2x4", "steps": ["train"], "params": {"units": 128}, "options": CHECK_ONLY}
    two = preflight(dense_model, input_fn, num_slices=2, batch_size=2048, **given)
    assert (two.num_replicas, two.num_slices) == (16, 2)
    (train,) = two.steps
    (alone,) = preflight(dense_model, input_fn, batch_size=1024, **given).steps
    assert (train.batch_size, train.flops, train.need_bytes) == (
        2048,
        alone.flops,
        alone.need_bytes,
    )
    assert train.network_bytes == train.collective_bytes == 4 * COLUMNS * 128


def test_slices_whose_network_is_not_known():
    with pytest.raises(ValueError, match="num_slices=0 must be at least 1"):
        check_slices(find_slice("v5e:2x4"), 0)
    for generation, chip in CHIPS.items():
        name = {"v2": "2x2", "v3": "2x2", "v5e": "2x4", "v6e": "2x4"}.get(generation, "2x2x1")
        check_slices(find_slice(f"{generation}:{name}"), 1)
        if chip.dcn_gbit_per_s is None:
            with pytest.raises(ValueError, match="chips of v5e, v5p, v6e, tpu7x"):
                check_slices(find_slice(f"{generation}:{name}"), 2)


def test_a_chip_without_tensorflow_is_told_of():
    assert not any("supports no TensorFlow" in each for each in report().caveats)
    assert any("no TensorFlow on tpu7x" in each for each in report(tpu="tpu7x:2x2x1").caveats)
