"""Batches that a loop draws itself are those that a thread of the iterator's would hand it."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.loops.step_loop import (
    build_step_loop,
    copy_with_direct_draws,
    repeat_step,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUEstimator, TPUEstimatorSpec

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


BATCHES = 6


def test_each_drawn_tensor_has_one_that_stands_for_it():
    with fresh_graph() as graph:
        drawn = as_input_tensors(tf.data.Dataset.from_tensor_slices({"a": [1, 2], "b": [3, 4]}))
        step = [drawn.features["a"] + 1, drawn.features["b"]]
        made = copy_with_direct_draws(GraphCopier(graph), step, name="step")
        assert kinds(graph).count("IteratorGetNextSync") == 1
        assert kinds(graph).count("IteratorGetNext") == 1
        with v1.train.MonitoredSession(hooks=drawn.hooks) as session:
            assert session.run(made) == [2, 3]
            assert session.run(step) == [3, 4]


def test_what_reads_nothing_of_a_batch_waits_for_it():
    with fresh_graph() as graph:
        drawn = as_input_tensors(tf.data.Dataset.range(3))
        count = v1.get_variable("count", initializer=0)
        step = [count.assign_add(1, read_value=False), drawn.features]
        made = copy_with_direct_draws(GraphCopier(graph), step, name="step")
        with v1.Session() as session:
            session.run(count.initializer)
            drawn.hooks[0].after_create_session(session, None)
            for _ in range(9):
                with contextlib.suppress(tf.errors.OutOfRangeError):
                    session.run(made)
            assert session.run(count) == 3


def kinds(graph):
    return [op.type for op in graph.get_operations()]


@pytest.mark.parametrize("waits", [True, False])
def test_a_draw_with_a_control_edge_from_or_to_it_stays(waits):
    with fresh_graph() as graph:
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(3))
        with tf.control_dependencies([tf.constant(1) + 1] if waits else []):
            step = iterator.get_next()
        if not waits:
            with tf.control_dependencies([step]):
                step = tf.constant(1) + 1
        copy_with_direct_draws(GraphCopier(graph), [step], name="step")
        assert "IteratorGetNextSync" not in kinds(graph)


def plus_one(row):
    return row + 1.0


def in_files(row):
    return tf.data.Dataset.from_tensors(row)


INPUTS = {
    "maps": lambda rows: rows.map(plus_one),
    "parallel maps": lambda rows: rows.map(plus_one, num_parallel_calls=2),
    "maps of all threads": lambda rows: rows.map(plus_one, num_parallel_calls=tf.data.AUTOTUNE),
    "files": lambda rows: rows.map(plus_one).interleave(
        in_files, cycle_length=2, num_parallel_calls=2
    ),
    "Python": lambda rows: rows.map(
        lambda row: tf.numpy_function(lambda value: value + np.float32(1), [row], tf.float32)
    ),
}


def model_fn(features, labels, mode, params):
    del labels, params
    sums = tf.reshape(features, [-1, 1])
    loss = tf.reduce_mean(sums * v1.get_variable("scale", [], initializer=v1.ones_initializer()))
    # It reads nothing of a batch, and must not count the end of the input for one.
    train_op = v1.train.get_global_step().assign_add(1, read_value=False)
    return TPUEstimatorSpec(
        mode,
        predictions={"sum": sums},
        loss=loss,
        train_op=tf.group(train_op, loss),
        eval_metrics=(lambda values: {"mean": v1.metrics.mean(values)}, [sums]),
    )


@pytest.mark.parametrize("pool", [None, 1])
@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_needs_none_of_the_threads_that_wait_for_it(kind, pool, tmp_path):
    def input_fn(params):
        rows = tf.data.Dataset.range(2 * BATCHES).map(lambda row: tf.cast(row, tf.float32))
        made = INPUTS[kind](rows).batch(params["batch_size"])
        threads = tf.data.Options()
        if pool is not None:
            threads.threading.private_threadpool_size = pool
        return made.with_options(threads)

    session_config = v1.ConfigProto()
    session_config.session_inter_op_thread_pool.add(num_threads=1)
    config = RunConfig(
        model_dir=str(tmp_path), session_config=session_config, stall_timeout_secs=60
    )
    estimator = TPUEstimator(
        model_fn,
        config=config,
        use_tpu=False,
        train_batch_size=2,
        eval_batch_size=2,
        predict_batch_size=2,
    )
    estimator.train(input_fn)
    assert estimator.get_variable_value("global_step") == BATCHES
    expected = np.arange(2 * BATCHES) + 1
    assert estimator.evaluate(input_fn)["mean"] == pytest.approx(expected.mean())
    assert [row["sum"].item() for row in estimator.predict(input_fn)] == expected.tolist()
