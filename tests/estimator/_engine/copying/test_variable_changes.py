import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.copying.variable_changes import (
    VariableChanges,
    reads_before_changes,
)
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _changing(build) -> dict[str, bool]:
    with fresh_graph() as graph:
        weight = v1.get_variable("weight", initializer=[1.0, 2.0])
        known = len(graph.get_operations())
        build(weight)
        changes = VariableChanges(graph.as_graph_def().library)
        new = graph.get_operations()[known:]
        return {op.type: changes.made_by(op.node_def) for op in new}


def test_assignments_and_updates_change_a_variable():
    made = _changing(
        lambda weight: (
            weight.assign_add([1.0, 1.0]),
            v1.train.AdamOptimizer().apply_gradients([(tf.constant([1.0, 1.0]), weight)]),
            weight.scatter_add(tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))),
        )
    )
    assert made["AssignAddVariableOp"]
    assert made["ResourceApplyAdam"]
    assert made["ResourceScatterAdd"]
    assert not made["ReadVariableOp"]
    assert not made["Const"]


def test_what_happens_in_functions_of_functions_counts():
    def nested(weight, change):
        inner = lambda: weight.assign_add([1.0, 1.0]) if change else weight * 2  # noqa: E731
        return tf.cond(
            weight[0] > 0,
            lambda: tf.cond(weight[1] > 0, inner, lambda: weight * 1),
            lambda: weight * 3,
        )

    assert any(_changing(lambda weight: nested(weight, True)).values())
    assert not any(_changing(lambda weight: nested(weight, False)).values())


@pytest.mark.parametrize(
    ("sources", "changes", "order"),
    [
        # A read that was made after a change, and does not wait for it.
        ([[], [0], []], [False, True, False], [0, 2, 1]),
        # One that waits for it.
        ([[], [0], [1]], [False, True, False], [0, 1, 2]),
        # What waits for one variable's change is still before another's.
        ([[], [0], [], []], [True, False, True, False], [3, 0, 1, 2]),
        # Changes stay in the order of their making.
        ([[], [], [], [1]], [True, True, True, False], [0, 1, 3, 2]),
        ([[], [], [0, 0]], [False, False, False], [0, 1, 2]),
    ],
)
def test_changes_come_as_late_as_they_can(sources, changes, order):
    assert reads_before_changes(sources, changes) == order


def test_copies_in_a_function_read_what_a_session_reads():
    with fresh_graph():
        count = v1.get_variable("count", initializer=0)
        x = v1.placeholder(tf.int32, [])
        add = count.assign_add(x, read_value=False)
        unpinned = count.read_value() * 10
        with tf.control_dependencies([add]):
            after = count.read_value() * 10
        copier = GraphCopier(v1.get_default_graph())
        fetches = [Fetch(core, node) for core in (0, 1) for node in (unpinned, after)]
        replaced = [{x.name: tf.constant(1)}, {x.name: tf.constant(7)}]
        copies = tf.function(
            lambda: copier.copy(fetches, replaced=replaced, name="cores"), autograph=False
        )()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert session.run(copies) == [0, 10, 0, 10]
            assert session.run(copies) == [10, 20, 10, 20]
            assert session.run([add, after], {x: 1})[1] == 30
