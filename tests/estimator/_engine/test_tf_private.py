"""Adam's one op for a table beside its own ops for the same gradients of rows."""

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.tf_private import tables_updated_in_one_op
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1

# Rows that a batch has twice, that only some batches have, and that none has.
_LOOKED_UP = np.array([[0, 2, 2], [5, 0, 5], [2, 1, 0], [5, 5, 5]])


class _Slower(v1.train.AdamOptimizer):
    """Adam with a way of its own to add rows."""

    def _resource_scatter_add(self, x, i, v):
        return super()._resource_scatter_add(x, i, v / 2)


def _trained(optimizer, dtype=tf.float32):
    """Trains a table, and returns it with its moments, and the types of ops that did it."""
    start = np.linspace(-1, 1, 21).reshape(7, 3)
    table = v1.get_variable("table", initializer=tf.constant(start, dtype), use_resource=True)
    rows = v1.placeholder(tf.int64, [3])
    loss = tf.reduce_sum(tf.square(tf.gather(table, rows)) + tf.gather(table, rows))
    train = optimizer(0.1).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for batch in _LOOKED_UP:
            session.run(train, {rows: batch})
        values = session.run([v for v in v1.global_variables() if v.name.startswith("table")])
    return values, {op.type for op in v1.get_default_graph().get_operations()}


def _in_own_ops(optimizer, dtype=tf.float32):
    with tf.Graph().as_default():
        return _trained(optimizer, dtype)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_the_numbers_are_those_of_adams_own_ops(dtype):
    expected, _ = _in_own_ops(v1.train.AdamOptimizer, dtype)
    with fresh_graph():
        found, types = _trained(v1.train.AdamOptimizer, dtype)
    assert "ResourceApplyAdam" in types
    assert not types & {"ResourceScatterAdd", "Unique"}
    assert len(found) == len(expected) == 3
    for value, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, own, rtol=1e-5, atol=1e-7)


def test_a_table_whose_number_of_rows_the_graph_does_not_know():
    start = np.zeros([7, 3], np.float32)
    with tf.Graph().as_default(), tables_updated_in_one_op():
        table = v1.get_variable(
            "table",
            initializer=v1.placeholder_with_default(start, None),
            validate_shape=False,
            use_resource=True,
        )
        gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([6, 6]))
        train = v1.train.AdamOptimizer(0.1).apply_gradients([(gradient, table)])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train)
            moved = session.run(table)
    # The first step of Adam is as long as its rate.
    np.testing.assert_allclose(moved, [[0.0] * 3] * 6 + [[-0.1] * 3], atol=1e-6)


def test_a_subclass_with_updates_of_its_own_keeps_them():
    expected, own_types = _in_own_ops(_Slower)
    with fresh_graph():
        found, types = _trained(_Slower)
    assert "ResourceScatterAdd" in types & own_types
    np.testing.assert_array_equal(found[0], expected[0])


def test_outside_of_the_engines_graphs_adam_is_as_it_was():
    own = vars(v1.train.AdamOptimizer).copy()
    with fresh_graph():
        with fresh_graph():
            pass
        assert vars(v1.train.AdamOptimizer) != own
    assert vars(v1.train.AdamOptimizer) == own


def test_a_method_that_a_program_has_given_adam_stays(monkeypatch):
    def own(self, grad, handle, indices):
        return tf.group(handle.assign(handle + 1))

    monkeypatch.setattr(
        v1.train.AdamOptimizer, "_resource_apply_sparse_duplicate_indices", own, raising=False
    )
    with fresh_graph():
        found, _ = _trained(v1.train.AdamOptimizer)
    assert v1.train.AdamOptimizer._resource_apply_sparse_duplicate_indices is own
    np.testing.assert_allclose(found[0][0], np.float32([3.0, 3.1, 3.2]))
