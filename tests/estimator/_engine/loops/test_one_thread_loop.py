"""Which steps are small: the graph alone decides.

The loop whose ops run on one thread each makes the steps of the plain one.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from tests.estimator._engine.templates import make_template
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import as_input_tensors
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import (
    LoopReadyHook,
    build_one_thread_loop,
    is_small,
)
from tfx_tpu_trainer.estimator._engine.loops.step_loop import build_template_loop
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import allows_loops
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _variable(*shape):
    return v1.get_variable(f"v{len(v1.global_variables())}", shape)


def _dense(*, rows=64, width=64, layers=2):
    outputs = tf.zeros([rows, width])
    for _ in range(layers):
        outputs = tf.nn.relu(outputs @ _variable(width, width) + _variable(width))
    return outputs


def _recurrent():
    weights = _variable(8, 8)
    return tf.while_loop(
        lambda i, x: i < 4, lambda i, x: (i + 1, x @ weights), (0, tf.ones([8, 8]))
    )


def _convolved():
    return tf.nn.conv2d(tf.zeros([8, 9, 9, 1]), _variable(3, 3, 1, 4), strides=1, padding="SAME")


def _of_array():
    array = tf.TensorArray(tf.float32, 2).write(0, _variable(3)).write(1, tf.ones(3))
    return array.stack()


def _of_table():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [0, 1]), 0)
    return tf.gather(_variable(3, 4), table.lookup(tf.constant([1, 2, 5])))


def _drawn(batch_size, width=32):
    rows = tf.data.Dataset.from_tensors(tf.zeros([width])).repeat().batch(batch_size)
    iterator = v1.data.make_initializable_iterator(rows)
    return iterator.get_next() @ _variable(width, width)


def _unknown_rows():
    return v1.placeholder(tf.float32, [None, 16]) @ _variable(16, 4)


def _elsewhere(device):
    with v1.device(device):
        return tf.square(_variable(3))


def _called():
    return tf.function(tf.reduce_sum)(_variable(3))


def _without_product():
    return tf.reduce_sum(tf.nn.relu(_variable(64)))


MODELS = {
    "dense": (_dense, True),
    "deep": (lambda: _dense(layers=8), True),
    "embedded": (lambda: tf.gather(_variable(8000, 16), tf.constant([1, 7])), True),
    "looked up": (_of_table, True),
    "dropped out": (lambda: tf.nn.dropout(_dense(), rate=0.5), True),
    "checked": (lambda: tf.debugging.check_numerics(_dense(), "loss"), True),
    "in a cond": (lambda: tf.cond(tf.constant(True), _without_product, lambda: 0.0), True),
    "of a TensorArray": (_of_array, True),
    "named device": (lambda: _elsewhere("/device:CPU:0"), True),
    "rows of its dataset": (lambda: _drawn(32), True),
    "wide": (lambda: _dense(width=512), False),
    "many rows": (lambda: _dense(rows=8192), False),
    "long table": (lambda: tf.gather(_variable(80_000, 16), tf.constant([1])), True),
    "long sum": (lambda: tf.reduce_sum(tf.square(tf.zeros([1 << 19]))), False),
    "many rows of its dataset": (lambda: _drawn(100_000), False),
    "unknown rows": (_unknown_rows, False),
    "called": (lambda: tf.function(tf.square)(_variable(3)), False),
    "called in a cond": (lambda: tf.cond(tf.constant(True), _called, lambda: 0.0), False),
    "convolved": (_convolved, False),
    "product in a loop": (lambda: _recurrent()[1], False),
    "Python": (lambda: tf.py_function(lambda: 1.0, [], tf.float32) + _variable(), False),
    "another device": (lambda: _elsewhere("/device:CPU:1"), False),
    "a worker": (lambda: _elsewhere("/job:worker/task:1"), False),
    "handle of a queue": (lambda: v1.FIFOQueue(3, [tf.float32]).dequeue() + _variable(), False),
}


def _step(outputs):
    loss = tf.reduce_mean(tf.cast(outputs, tf.float32))
    return [v1.train.get_global_step().assign_add(1, read_value=False), loss]


@pytest.mark.parametrize("model", MODELS)
def test_the_graph_tells_whether_a_step_is_small(model):
    make, small = MODELS[model]
    with fresh_graph():
        assert is_small(_step(make())) is small


@pytest.mark.parametrize(("rows", "small"), [(300, True), (400, False)])
def test_an_update_is_long_that_a_read_is_not(rows, small):
    with fresh_graph():
        table = _variable(rows, 400)
        loss = tf.reduce_mean(table)
        step = v1.train.get_global_step()
        train_op = v1.train.AdamOptimizer().minimize(loss, global_step=step)
        assert is_small([train_op, loss]) is small
        assert is_small(_step(tf.reduce_mean(table)))


def _summing(batches, *, build=build_one_thread_loop):
    """A loop that sums what it reads, and its sum."""
    dataset = tf.data.Dataset.from_generator(
        lambda: (np.asarray(batch, np.float32) for batch in batches),
        output_signature=tf.TensorSpec([None], tf.float32),
    )
    inputs = as_input_tensors(dataset)
    total = v1.get_variable("total", initializer=0.0)
    loss = tf.reduce_sum(inputs.features)
    step = v1.train.get_global_step()
    train_op = tf.group(total.assign_add(loss), step.assign_add(1, read_value=False))
    return build(make_template("train", loss=loss, train_op=train_op)), total.read_value(), inputs


def _session(inputs, loop):
    session = v1.Session()
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
    for hook in inputs.hooks:
        hook.after_create_session(session, None)
    loop.prepare(session)
    return session


def test_it_makes_as_many_steps_as_it_is_told_on_batches_of_any_shape():
    with fresh_graph():
        loop, total, inputs = _summing([[1], [2, 3], [], [4, 5, 6], [7], [8]])
        with _session(inputs, loop) as session:
            assert loop.run(session, 2) == (5.0, 2)
            assert session.run(total) == 6
            assert loop.run(session, 3) == (7.0, 5)
            # Fetched as a step is: no number of steps is fed.
            assert session.run(loop.loss) == 8
            assert session.run(total) == 36


def test_batches_are_drawn_for_steps_that_are_made_only():
    with fresh_graph():
        loop, _, inputs = _summing([[number] for number in range(9)])
        with _session(inputs, loop) as session:
            loop.run(session, 4)
            assert session.run(inputs.features) == [4]
            assert loop.run(session, 2) == (6.0, 6)


def test_the_end_of_the_input_is_the_end():
    with fresh_graph():
        loop, total, inputs = _summing([[1], [2]])
        with _session(inputs, loop) as session:
            for _ in range(2):
                with pytest.raises(tf.errors.OutOfRangeError):
                    loop.run(session, 5)
            assert session.run(total) == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_it_ends_after_a_step_whose_loss_is_not_finite(bad):
    with fresh_graph():
        loop, _, inputs = _summing([[1], [bad], [3], [4]])
        with _session(inputs, loop) as session:
            loss, step = loop.run(session, 4)
            np.testing.assert_equal(loss, np.float32(bad))
            assert step == 2


def test_an_error_of_the_model_is_not_one_of_the_input():
    with fresh_graph():
        ids = as_input_tensors(tf.data.Dataset.from_tensor_slices([1, 2, 9]))
        loss = tf.gather(v1.get_variable("table", initializer=[1.0, 2.0, 4.0]), ids.features)
        step = v1.train.get_global_step()
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1, read_value=False)
        loop = build_one_thread_loop(make_template("train", loss=loss, train_op=train_op))
        with _session(ids, loop) as session:
            assert loop.run(session, 2) == (4.0, 2)
            with pytest.raises(tf.errors.InvalidArgumentError, match="= 9 is not in") as error:
                loop.run(session, 1)
        assert "IteratorGetNext" not in error.value.message


def test_seeded_draws_go_on_from_call_to_call():
    drawn = {}
    for build in (build_template_loop, build_one_thread_loop):
        with fresh_graph():
            loss = tf.random.uniform([], seed=5)
            step = v1.train.get_global_step()
            train_op = step.assign_add(1, read_value=False)
            loop = build(make_template("train", loss=loss, train_op=train_op))
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                draws = []
                for steps in (1, 2, 1):
                    # That of each session, and of calls that run ahead within it.
                    loop.prepare(session)
                    draws.append(loop.run(session, steps)[0])
            drawn[build] = draws
    assert len(set(drawn[build_template_loop])) == 3
    assert drawn[build_one_thread_loop] == drawn[build_template_loop]


def test_it_starts_in_each_session():
    with fresh_graph():
        loop, total, inputs = _summing([[1], [2], [3]])
        hook = LoopReadyHook(loop)
        assert allows_loops([hook])
        for _ in range(2):
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                inputs.hooks[0].after_create_session(session, None)
                hook.after_create_session(session, None)
                assert loop.run(session, 3) == (3.0, 3)
                assert session.run(total) == 6


def test_two_of_one_graph_do_not_meet():
    with fresh_graph():
        losses = [tf.constant(3.0), tf.constant(4.0)]
        step = v1.train.get_global_step()
        train_op = step.assign_add(1, read_value=False)
        loops = [
            build_one_thread_loop(make_template("train", loss=loss, train_op=train_op))
            for loss in losses
        ]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for loop in loops:
                loop.prepare(session)
            assert loops[0].run(session, 2) == (3.0, 2)
            assert loops[1].run(session, 3) == (4.0, 5)
            assert loops[0].run(session, 1) == (3.0, 6)


def test_its_ops_have_one_thread_and_nothing_runs_ahead():
    with fresh_graph() as graph:
        _summing([[1]])
        marked = [op for op in graph.get_operations() if op.type == "OptionsDataset"][-1]
        options = dataset_options_pb2.Options.FromString(marked.get_attr("serialized_options"))
        assert marked.inputs[0].op.type == "MapDataset"
    assert options.threading_options.max_intra_op_parallelism == 1
    assert not options.autotune_options.enabled
    assert not options.optimization_options.inject_prefetch


def test_it_leaves_nothing_in_the_graphs_collections():
    with fresh_graph() as graph:
        inputs = as_input_tensors(tf.data.Dataset.range(3))
        step = v1.train.get_global_step()
        train_op = step.assign_add(1, read_value=False)
        template = make_template(
            "train", loss=tf.cast(inputs.features, tf.float32), train_op=train_op
        )
        before = _collections(graph)
        build_one_thread_loop(template)
        assert _collections(graph) == before


def _collections(graph):
    keys = graph.get_all_collection_keys()
    return {key: graph.get_collection(key) for key in keys if graph.get_collection(key)}
