from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.copying.copy_order import reads_before_changes
from tfx_tpu_trainer.engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


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
