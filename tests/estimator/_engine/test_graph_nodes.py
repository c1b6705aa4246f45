import pytest
import tensorflow as tf

from tests.serving.exports import EACH_OTHER, IN_A_ROW, TWICE_EACH, library_of
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    all_nodes,
    functions_of,
    functions_with,
    nodes_called,
    upstream,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

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


@pytest.mark.parametrize("calls", [TWICE_EACH, IN_A_ROW, EACH_OTHER])
def test_each_function_is_gone_through_once_whatever_calls_it(calls):
    graph_def = library_of(calls, "PartitionedCall")
    functions = functions_of(graph_def.library)
    found = list(nodes_called(graph_def.node, functions))
    ones = sum(not called for called in calls.values())
    assert len(found) == sum(map(len, calls.values())) + ones
    assert functions_with(functions, lambda node: node.op == "Const") == (
        set(calls) if ones else set()
    )
    seen = {"f1"}
    assert len(list(nodes_called(graph_def.node, functions, seen=seen))) == len(calls["f0"])
    assert seen == {"f0", "f1"}


def test_nodes_of_functions_come_in_the_order_of_the_calls():
    calls = {"f0": ["f1", "f2", "none"], "f1": ["f3"], "f2": ["f3"], "f3": []}
    graph_def = library_of(calls, "PartitionedCall")
    functions = functions_of(graph_def.library)
    found = nodes_called(graph_def.node, functions)
    called = [node.attr["f"].func.name for node in found if node.op != "Const"]
    assert called == ["f1", "f3", "f2", "f3", "none"]
    found = nodes_called(graph_def.node, functions, enters=lambda n: n.attr["f"].func.name != "f1")
    assert [node.op for node in found].index("Const") == 3
    assert functions_with(functions, lambda node: node.attr["f"].func.name == "f1") == {"f0"}
