"""Random ops that draw by the global step."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.stateless_random import draw_by_step

v1 = tf.compat.v1


def _drawn(build, *, steps, unseeded=False, first=0, by_step=True):
    """What each step of a model draws whose loss is a draw."""
    with fresh_graph():
        loss = tf.identity(build())
        step = v1.train.get_global_step()
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1, read_value=False)
        if by_step:
            reads = draw_by_step(
                make_template("train", loss=loss, train_op=train_op), unseeded=unseeded
            )
            assert (reads is None) == (build is _in_v1_loop)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(step.assign(first).op)
            return [session.run([loss, train_op])[0] for _ in range(steps)]


_BUILDS = {
    "uniform": lambda: tf.reduce_sum(tf.random.uniform([3], seed=4)),
    "normal": lambda: tf.reduce_sum(tf.random.normal([3], seed=4)),
    "truncated normal": lambda: tf.reduce_sum(tf.random.truncated_normal([3], seed=4)),
    "integers": lambda: tf.random.uniform([], 0, 1 << 30, tf.int32, seed=4),
}


@pytest.mark.parametrize("kind", _BUILDS)
def test_a_seed_draws_what_its_op_draws_at_that_step(kind):
    expected = _drawn(_BUILDS[kind], steps=5, by_step=False)
    assert len(set(expected)) == 5
    np.testing.assert_array_equal(_drawn(_BUILDS[kind], steps=5), expected)
    np.testing.assert_array_equal(_drawn(_BUILDS[kind], steps=2, first=3), expected[3:])


def test_without_a_seed_each_graph_draws_something_else():
    def build():
        return tf.reduce_sum(tf.random.uniform([3]))

    draws = [_drawn(build, steps=3, unseeded=True) for _ in range(2)]
    assert len({*draws[0], *draws[1]}) == 6


def _in_v1_loop():
    with_v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        return v1.while_loop(
            lambda total: total < 1,
            lambda total: total + tf.random.uniform([], 0.3, 0.6, seed=4),
            [tf.constant(0.0)],
        )
    finally:
        if with_v2:
            v1.enable_control_flow_v2()


def test_draws_in_a_version_1_loop_stay_and_are_named(caplog):
    with log_lines(caplog):
        drawn = _drawn(_in_v1_loop, steps=2, unseeded=True)
    assert all(1 <= total < 1.6 for total in drawn)
    (line,) = [r.getMessage() for r in caplog.records if "draw the same numbers" in r.getMessage()]
    assert "(RandomUniform)" in line
