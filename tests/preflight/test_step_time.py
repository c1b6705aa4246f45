"""The bounds and the estimate of a step against their formulas, on one slice and on several."""

import dataclasses

import pytest
import tensorflow as tf

from tests.preflight.lowered import CHECK_ONLY
from tests.preflight.reports import compiled_step, lowered_step, report
from tests.preflight.test_run import COLUMNS, dense_model, input_fn
from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec
from tfx_tpu_trainer.hardware import CHIPS, find_slice
from tfx_tpu_trainer.preflight import preflight
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs, lower_engine_step
from tfx_tpu_trainer.preflight._hlo_cost import OpCost
from tfx_tpu_trainer.preflight._report import StepReport
from tfx_tpu_trainer.preflight._step_time import (
    KERNEL_SECONDS,
    LINK_SHARE,
    MEMORY_SHARE,
    Roofline,
    bytes_sent,
    check_slices,
    estimate,
    matrix_share,
    roofline,
    seconds_at_least,
    time_ops,
)

v1 = tf.compat.v1


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


CHIP = find_slice("v5e:1x1")
SECOND_OF_FLOPS = matrix_share("v5e") * 197e12
SECOND_OF_BYTES = MEMORY_SHARE * 819e9
SECOND_OF_LINKS = LINK_SHARE * 200e9


def _op(*, flops=0.0, memory=0.0, links=0.0, runs=1, overlaps=False):
    """Returns an instruction whose needs are given in seconds of a v5e chip."""
    return OpCost(
        name="fusion.1",
        opcode="fusion",
        op_name="dense/MatMul",
        op_type="MatMul",
        runs=runs,
        flops=flops * SECOND_OF_FLOPS,
        hbm_bytes=round(memory * SECOND_OF_BYTES),
        collective_bytes=round(links * SECOND_OF_LINKS / 1.75),
        overlaps=overlaps,
    )


def _seconds(*ops, tpu="v5e:1x1", replicas=1):
    return estimate(ops, find_slice(tpu), num_replicas=replicas)


def test_kernels_take_the_longer_of_operations_and_bytes_one_after_the_other():
    found = _seconds(_op(flops=2, memory=1), _op(flops=1, memory=3, runs=4))
    assert found.compute_seconds == pytest.approx(2)
    assert found.memory_seconds == pytest.approx(12)
    assert found.launch_seconds == pytest.approx(5 * KERNEL_SECONDS)
    assert found.step_seconds == pytest.approx(14, rel=1e-5)


def test_copies_hide_behind_operations_as_far_as_the_memory_is_free():
    hidden = _seconds(_op(flops=5, memory=1), _op(memory=3, overlaps=True))
    assert hidden.step_seconds == pytest.approx(5, rel=1e-5)
    longer = _seconds(_op(flops=5, memory=1), _op(memory=9, overlaps=True))
    assert longer.step_seconds == pytest.approx(10, rel=1e-5)


def test_collectives_that_begin_early_hide_and_others_do_not():
    # Over 8 chips, 7/8 of the bytes leave each chip twice.
    early = _seconds(_op(flops=5), _op(links=4, overlaps=True), tpu="v5e:2x4", replicas=8)
    assert early.collective_seconds == 0 and early.step_seconds == pytest.approx(5, rel=1e-5)
    late = _seconds(_op(flops=5), _op(links=4), tpu="v5e:2x4", replicas=8)
    assert late.collective_seconds == pytest.approx(4, rel=1e-5)


def test_what_limits_a_kernel_is_named():
    ops = [_op(flops=2, memory=1), _op(memory=1), _op(), _op(links=1)]
    named = [each.limited_by for each in time_ops(ops, find_slice("v5e:2x4"), num_replicas=8)]
    assert named == ["compute", "memory", "launch", "collectives"]


def test_a_device_of_two_cores_has_half_a_chip():
    op = dataclasses.replace(_op(), flops=matrix_share("v3") * 61.5e12)
    (timed,) = time_ops([op], find_slice("v3:2x2"), num_replicas=8)
    assert timed.compute_seconds == pytest.approx(1)


def _looped(turns):
    def model_fn(features, labels, mode, params):
        del labels, params
        kernel = v1.get_variable("kernel", [256, 256])

        def body(turn, hidden):
            return turn + 1, tf.nn.relu(tf.matmul(hidden, kernel))

        _, hidden = tf.while_loop(
            lambda turn, _: turn < turns, body, [0, features["x"]], maximum_iterations=turns
        )
        loss = tf.reduce_mean(hidden)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    step = lower_engine_step(
        model_fn,
        input_fn_of_specs({"x": tf.TensorSpec([256])}),
        "train",
        batch_size=1024,
        num_replicas=1,
    )
    (compiled,) = compile_steps([step], CHIP, CHECK_ONLY)
    return compiled, StepReport.of(step, compiled, tpu_slice=CHIP)


def test_the_turns_of_a_compiled_loop_count_in_bound_and_estimate():
    compiled, report = _looped(40)
    # A product in each turn, and two for its gradients.
    products = 2 * 1024 * 256 * 256 * 40
    assert sum(each.runs * each.flops for each in compiled.costs) == pytest.approx(3 * products)
    assert compiled.flops == pytest.approx(3 * products, rel=0.1)
    assert compiled.unknown_loops == 0
    assert report.estimate.step_seconds >= report.roofline.step_seconds


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
