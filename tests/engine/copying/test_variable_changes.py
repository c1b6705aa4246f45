from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.variable_changes import VariableChanges
from tfx_tpu_trainer.engine.tracing import fresh_graph

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
