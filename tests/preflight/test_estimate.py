"""The estimate of a step, against its formulas, and on a compiled loop."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from tests.preflight.lowered import CHECK_ONLY
from tfx_tpu_trainer.estimator.tpu import CrossShardOptimizer, TPUEstimatorSpec
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs, lower_engine_step
from tfx_tpu_trainer.preflight._hlo_cost import OpCost
from tfx_tpu_trainer.preflight._report import StepReport
from tfx_tpu_trainer.preflight._step_time import (
    KERNEL_SECONDS,
    LINK_SHARE,
    MEMORY_SHARE,
    estimate,
    matrix_share,
    time_ops,
)

v1 = tf.compat.v1

CHIP = find_slice("v5e:1x1")
SECOND_OF_FLOPS = matrix_share("v5e") * 197e12
SECOND_OF_BYTES = MEMORY_SHARE * 819e9
SECOND_OF_LINKS = LINK_SHARE * 200e9


def _op(*, flops=0.0, memory=0.0, links=0.0, runs=1, overlaps=False):
    """An instruction; what it needs is given in seconds of a v5e chip."""
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
