import collections

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier, makes_handle
from tfx_tpu_trainer.estimator._engine.copying.shared_ops import SharedOps
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1

ROWS = ([1.0, 2.0], [3.0, 4.0], [5.0, 7.0])


def _on_cores(model, rows=ROWS):
    """Copies a model onto cores; returns what each core gets, the copies' types, and the copies."""
    with fresh_graph(seed=3) as graph:
        x = v1.placeholder(tf.float32, [2])
        result = model(x)
        replaced = [{x.name: tf.constant(each)} for each in rows]
        known = set(graph.get_operations())
        fetches = [Fetch(core, result) for core in range(len(rows))]
        copies = GraphCopier(graph).copy(fetches, replaced=replaced, name="cores")
        made = [op for op in graph.get_operations() if op not in known]
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            values = session.run(copies)
    return values, collections.Counter(op.type for op in made), copies


def _weights():
    return v1.get_variable("w", initializer=[1.0, 3.0])


def test_what_is_computed_of_variables_alone_is_computed_once():
    def model(x):
        weights = _weights()
        return tf.reduce_sum(weights * x) + tf.nn.l2_loss(weights)

    values, types, _ = _on_cores(model)
    w = np.array([1.0, 3.0])
    np.testing.assert_allclose(values, [w @ row + w @ w / 2 for row in np.array(ROWS)])
    assert (types["L2Loss"], types["Mul"]) == (1, len(ROWS))


def test_what_waits_for_a_cores_own_rows_is_computed_by_each_core():
    def model(x):
        with tf.control_dependencies([tf.negative(x).op]):
            return tf.nn.l2_loss(_weights())

    assert _on_cores(model)[1]["L2Loss"] == len(ROWS)


def test_what_waits_for_a_change_of_a_variable_is_computed_once_after_it():
    def model(x):
        weights = _weights()
        change = weights.assign_add([1.0, 1.0], read_value=False)
        with tf.control_dependencies([change]):
            return tf.reduce_sum(x) + tf.nn.l2_loss(weights.read_value())

    values, types, _ = _on_cores(model)
    np.testing.assert_allclose(values, [sum(row) + (2.0**2 + 4.0**2) / 2 for row in ROWS])
    assert types["AssignAddVariableOp"] == types["L2Loss"] == 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda: tf.random.uniform([2], seed=5),
        lambda: tf.random.uniform([2]),
        lambda: v1.multinomial([[0.5, 0.5]], 2, seed=1, output_dtype=tf.int32)[0],
    ],
    ids=["seeded", "of the graph's seed", "multinomial"],
)
def test_each_core_draws_its_own_random_numbers(draw):
    _, types, copies = _on_cores(lambda x: x + tf.cast(draw(), tf.float32))
    drawing = {
        op.name
        for copy in copies
        for op in upstream([copy])
        if op.type in ("RandomUniform", "Multinomial")
    }
    assert len(drawing) == types["RandomUniform"] + types["Multinomial"] == len(ROWS)


def test_an_op_with_a_seed_but_no_state_is_each_cores_own():
    def model(x):
        images = tf.reshape(_weights(), [1, 2, 1, 1])
        pooled = tf.nn.fractional_max_pool(images, [1, 2.0, 1.0, 1], seed=7)
        return x + pooled.output[0, 0, 0, 0]

    assert _on_cores(model)[1]["FractionalMaxPool"] == len(ROWS)


def test_equal_constants_are_one():
    values, types, _ = _on_cores(
        lambda x: x * tf.constant(2.0) + tf.constant(2.0) + tf.constant([2.0, 2.0])
    )
    np.testing.assert_allclose(values, 2 * np.array(ROWS) + 4)
    # The scalar, and the vector, whose value is the same and whose shape is not.
    assert types["Const"] == 2


def test_a_constant_that_waits_stands_for_itself():
    def model(x):
        with tf.control_dependencies([tf.negative(x).op]):
            waiting = tf.constant(2.0)
        return x * waiting + tf.constant(2.0)

    assert _on_cores(model)[1]["Const"] == len(ROWS) + 1


W, V = np.array([1.0, 3.0]), np.array([2.0, 5.0])


def _gradients(x):
    """Gradients of (w v + x)² by w and v, those of w v behind a gate, added."""
    w, v = (v1.get_variable(name, initializer=each.tolist()) for name, each in (("w", W), ("v", V)))
    by_w, by_v = tf.gradients(tf.square(w * v + x), [w, v], gate_gradients=True)
    assert "_grad/tuple/control_dependency" in by_w.name
    return by_w * 1.0 + by_v


def _found_gradients():
    return [2 * (W * V + row) * (W + V) for row in np.array(ROWS)]


def test_gates_of_gradients_are_no_nodes_and_what_reads_one_waits_for_the_others():
    values, _, copies = _on_cores(_gradients)
    np.testing.assert_allclose(values, _found_gradients())
    for copy in copies:
        assert not [op.name for op in upstream([copy]) if "/tuple/" in op.name]
        product, by_v = (tensor.op for tensor in copy.op.inputs)
        (by_w,) = {tensor.op for tensor in product.inputs if tensor.op.type != "Const"}
        assert by_v in product.control_inputs
        assert by_w in copy.op.control_inputs


def test_a_gradient_behind_a_gate_waits_for_the_changes_that_the_gate_waits_for():
    def model(x):
        change = v1.get_variable("average", initializer=0.0).assign_add(1.0, read_value=False)
        with tf.control_dependencies([change]):
            return _gradients(x)

    values, _, copies = _on_cores(model)
    np.testing.assert_allclose(values, _found_gradients())
    for copy in copies:
        waits = {op.type for op in copy.op.control_inputs}
        assert "AssignAddVariableOp" in waits


def test_what_stands_for_a_gate_is_read_in_its_place():
    with fresh_graph() as graph:
        total = _gradients(v1.placeholder(tf.float32, [2], name="x"))
        gate = total.op.inputs[1]
        replaced = [{"x:0": tf.constant(ROWS[0]), gate.name: tf.constant([0.5, 0.5])}]
        (copy,) = GraphCopier(graph).copy([Fetch(0, total)], replaced=replaced, name="core")
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            value = session.run(copy)
    np.testing.assert_allclose(value, 2 * (W * V + np.array(ROWS[0])) * V + 0.5)


def test_a_tuple_of_the_users_own_stays():
    def model(x):
        return tf.tuple([x * 2.0, x * 3.0])[0]

    assert _on_cores(model)[1]["Identity"] == len(ROWS)


def test_ops_in_a_loop_of_tensorflow_1_are_each_cores_own():
    graph = tf.Graph()
    was_enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with graph.as_default():
            total = tf.while_loop(lambda i: i < 5, lambda i: i + 1, [tf.constant(0)])[0]
    finally:
        if was_enabled:
            v1.enable_control_flow_v2()
    spared = SharedOps(
        node_def=lambda op: op.node_def,
        is_handle=makes_handle,
        is_of_first=lambda op: False,
        differing=(),
    )
    assert not spared.same_on_all(total.op)
