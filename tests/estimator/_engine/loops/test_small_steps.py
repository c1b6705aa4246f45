"""Which steps are small: the graph alone decides."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.loops.small_steps import is_small
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
