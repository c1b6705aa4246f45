from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.engine.graph_nodes import all_nodes, upstream
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _names(nodes, **options) -> list[str]:
    return [op.name for op in upstream(nodes, **options)]


def test_each_operation_comes_once_and_after_one_that_needs_it():
    with fresh_graph():
        x = tf.constant(1.0, name="x")
        with tf.control_dependencies([tf.no_op("before")]):
            y = tf.add(x, x, name="y")
        tf.add(y, 1.0, name="beside")
        assert _names([y, y.op, x]) == ["x", "y", "before"]


def test_what_only_makes_given_tensors_is_left_out():
    with fresh_graph():
        first, second = tf.unstack(tf.constant([1.0, 2.0]), name="parts")
        with tf.control_dependencies([first]):
            total = tf.add(first, 3.0, name="total")
        assert "parts" in _names([total], given={second.name})
        # The control input waits for the whole op, of which one result is still needed.
        assert "parts" in _names([total], given={first.name})
        assert _names([total], given={first.name, second.name}) == ["total", "total/y"]
        assert _names([total], given={total.name}) == []


def test_nodes_of_functions_are_nodes_too():
    with fresh_graph() as graph:
        tf.function(tf.sin, autograph=False)(tf.constant(1.0))
    assert {"Const", "Sin"} <= {node.op for node in all_nodes(graph.as_graph_def())}
