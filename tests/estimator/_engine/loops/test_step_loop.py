from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.loops.step_loop import build_step_loop, repeat_step
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _counting_step(losses):
    """A step n with the loss `losses[n]`, and a variable of the steps made."""
    made = v1.get_variable("made", initializer=0)

    def step(number):
        with tf.control_dependencies([made.assign_add(1, read_value=False)]):
            return tf.gather(tf.constant(losses, tf.float32), number)

    return step, made


def _counting_loop(losses):
    step, made = _counting_step(losses)
    return build_step_loop(step, loss_dtype=tf.float32), made.read_value()


def _session():
    session = v1.Session()
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
    return session


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.behaviour(164)
def test_a_call_makes_as_many_steps_as_the_variable_says(steps):
    with fresh_graph():
        loop, made = _counting_loop([5, 4, 3, 2, 1])
        assign = loop.iterations.assign(steps, read_value=False)
        assert loop.iterations.name == "iterations_per_loop:0"
        with _session() as session:
            session.run(assign)
            assert session.run(loop.loss) == 6 - steps
            assert session.run(made) == steps
            session.run(loop.loss)
            assert session.run(made) == 2 * steps


def test_a_loop_that_is_running_ends_when_its_length_is_made_smaller():
    with fresh_graph():
        made = v1.get_variable("made", initializer=0)

        def step(number):
            (iterations,) = v1.local_variables()
            shorter = iterations.assign(tf.where(number < 3, 10, 1), read_value=False)
            with tf.control_dependencies([made.assign_add(1, read_value=False), shorter]):
                return tf.cast(number, tf.float32)

        loop = build_step_loop(step, loss_dtype=tf.float32)
        with _session() as session:
            session.run(loop.iterations.assign(10))
            assert session.run(loop.loss) == 3
            assert session.run(made) == 4


def test_the_length_is_no_variable_of_the_model():
    with fresh_graph():
        loop, _ = _counting_loop([1])
        names = {variable.name for variable in v1.global_variables()}
        assert loop.iterations.name not in names
        assert v1.trainable_variables()[0].name == "made:0"


def test_tensorflow_optimizes_only_the_loops_control_dependencies():
    with fresh_graph():
        loop, _ = _counting_loop([1])
        config = v1.ConfigProto.FromString(loop.loss.op.get_attr("config_proto"))
    rewrite = config.graph_options.rewrite_options
    assert rewrite.remapping == type(rewrite).OFF
    assert rewrite.dependency_optimization == type(rewrite).DEFAULT


@pytest.mark.parametrize(("stop", "made_steps"), [(True, 2), (False, 4)])
def test_a_loop_may_end_at_the_first_loss_that_is_not_finite(stop, made_steps):
    with fresh_graph():
        step, made = _counting_step([1, np.nan, 2, np.inf])
        loss = repeat_step(step, tf.constant(4), loss_dtype=tf.float32, stop_if_not_finite=stop)
        after = made.read_value()
        with _session() as session:
            assert not np.isfinite(session.run(loss))
            assert session.run(after) == made_steps
