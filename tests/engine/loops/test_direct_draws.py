"""Batches that a loop draws itself are those that a thread of the iterator's would hand it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.feeding.input_pipeline import as_input_tensors
from tfx_tpu_trainer.engine.loops.direct_draws import direct_draws
from tfx_tpu_trainer.engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUEstimator, TPUEstimatorSpec

v1 = tf.compat.v1

BATCHES = 6


def test_each_drawn_tensor_has_one_that_stands_for_it():
    with fresh_graph() as graph:
        drawn = as_input_tensors(tf.data.Dataset.from_tensor_slices({"a": [1, 2], "b": [3, 4]}))
        step = [drawn.features["a"] + 1, drawn.features["b"]]
        made = direct_draws(step)
        assert set(made) == {tensor.name for tensor in tf.nest.flatten(drawn.features)}
        assert {tensor.op.type for tensor in made.values()} == {"IteratorGetNextSync"}
        assert len([op for op in graph.get_operations() if op.type == "IteratorGetNextSync"]) == 1
        with v1.train.MonitoredSession(hooks=drawn.hooks) as session:
            other = [made[tensor.name] for tensor in tf.nest.flatten(drawn.features)]
            assert session.run(other) == [1, 3]
            assert session.run(drawn.features) == {"a": 2, "b": 4}


def test_a_draw_that_an_op_only_waits_for_stays():
    with fresh_graph():
        drawn = as_input_tensors(tf.data.Dataset.range(3))
        with tf.control_dependencies([drawn.features]):
            waits = tf.constant(1) + 1
        assert direct_draws([waits]) == {}


def test_a_draw_that_waits_for_an_op_stays():
    with fresh_graph():
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(3))
        with tf.control_dependencies([tf.constant(1) + 1]):
            drawn = iterator.get_next()
        assert direct_draws([drawn]) == {}


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
    with tf.control_dependencies([loss]):
        train_op = v1.train.get_global_step().assign_add(1, read_value=False)
    return TPUEstimatorSpec(
        mode,
        predictions={"sum": sums},
        loss=loss,
        train_op=train_op,
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
