import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import VariableChanges, reads_before_changes
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _copy(fetches, replaced, *, in_function: bool = False, **options):
    """Copies in the default graph, or in a function of it."""
    copier = GraphCopier(v1.get_default_graph())

    def copy():
        return copier.copy(fetches, replaced=replaced(), name="copies", **options)

    return tf.function(copy, autograph=False)() if in_function else copy()


def _run(fetches):
    with v1.Session(config=placed_by_need(None)) as session:
        session.run(v1.global_variables_initializer())
        return session.run(fetches)


@pytest.mark.parametrize("in_function", [False, True])
def test_each_core_reads_its_own_rows_and_all_share_the_variables(in_function):
    with fresh_graph():
        x = v1.placeholder(tf.float32, [2])
        weight = v1.get_variable("weight", initializer=3.0)
        y = x * weight + tf.constant([1.0, 2.0])
        variables = len(v1.global_variables())
        copies = _copy(
            [Fetch(0, y), Fetch(1, y)],
            lambda: [{x.name: tf.constant([1.0, 1.0])}, {x.name: tf.constant([5.0, 6.0])}],
            in_function=in_function,
        )
        assert len(v1.global_variables()) == variables
        first, second = _run(copies)
    np.testing.assert_array_equal(first, [4, 5])
    np.testing.assert_array_equal(second, [16, 20])


def test_what_stands_for_a_fetch_is_given_back():
    with fresh_graph():
        x = v1.placeholder(tf.float32, [])
        weight = v1.get_variable("weight", initializer=3.0)
        given = tf.constant(7.0)
        copies = _copy([Fetch(0, x), Fetch(0, weight.handle)], lambda: [{x.name: given}])
        assert copies[0] is given
        assert copies[1] is weight.handle


@pytest.mark.parametrize(
    ("groups", "alone", "sums"),
    [
        (None, False, [10, 10, 10, 10]),
        ([[0, 2], [1, 3]], False, [4, 6, 4, 6]),
        (None, True, [1, 2, 3, 4]),
    ],
)
@pytest.mark.behaviour(184, 189)
def test_a_sum_over_cores_adds_its_groups_copies(groups, alone, sums):
    with fresh_graph():
        x = v1.placeholder(tf.float32, [])
        total = v1.tpu.cross_replica_sum(x, groups or [[0, 1, 2, 3]])
        copies = _copy(
            [Fetch(core, total + 0) for core in range(4)],
            lambda: [{x.name: tf.constant(float(core + 1))} for core in range(4)],
            alone=alone,
        )
        assert _run(copies) == sums


@pytest.mark.parametrize(("seed", "different"), [(4, 2), (None, 4)])
def test_random_ops_differ_between_cores_and_without_a_seed_between_runs(seed, different):
    def draw():
        with fresh_graph(seed=seed):
            values = tf.random.uniform([8])
            return _run(_copy([Fetch(0, values), Fetch(1, values)], lambda: [{}, {}]))

    (first, second), again = draw(), draw()
    assert not np.array_equal(first, second)
    assert len({tuple(values) for values in (first, second, *again)}) == different
    assert np.array_equal(again, (first, second)) == (seed is not None)


@pytest.mark.parametrize("how", ["directly", "in a group", "in a branch"])
def test_updates_that_another_core_only_waits_for_are_the_first_cores(how):
    with fresh_graph():
        x = v1.placeholder(tf.float32, [])
        count = v1.get_variable("count", initializer=0.0)
        if how == "in a branch":
            update = tf.cond(x > 0, lambda: count.assign_add(x), lambda: count.read_value()).op
        else:
            update = count.assign_add(x, read_value=False)
        waits_for = tf.group(update) if how == "in a group" else update
        with tf.control_dependencies([waits_for]):
            y = x * 2
        copies = _copy(
            [Fetch(0, y), Fetch(1, y)],
            lambda: [{x.name: tf.constant(1.0)}, {x.name: tf.constant(10.0)}],
            in_function=True,
        )
        with tf.control_dependencies(copies):
            after = count.read_value()
        assert _run([*copies, after]) == [2, 20, 1]


def test_ops_that_wait_for_the_same_changes_share_what_waits_for_them():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [])
        counts = [v1.get_variable(f"count{i}", initializer=0.0) for i in range(5)]
        updates = [count.assign_add(x, read_value=False) for count in counts]
        with tf.control_dependencies(updates):
            first = x * 2
        with tf.control_dependencies(updates[::-1]):
            second = x * 3
        copies = _copy(
            [Fetch(core, y) for core in range(2) for y in (first, second)],
            lambda: [{x.name: tf.constant(1.0)}, {x.name: tf.constant(10.0)}],
        )
        waiting = [op for op in graph.get_operations() if op.name.startswith("copies/")]
        # The factors, which are the same on both cores, and what waits in their place.
        assert sorted(len(op.control_inputs) for op in waiting if op.control_inputs) == [1, 1, 5]
        with tf.control_dependencies(copies):
            after = [count.read_value() for count in counts]
        assert _run([copies, after]) == [[2, 3, 20, 30], [1] * 5]


def test_a_sum_in_turns_adds_one_core_after_the_other():
    values = np.random.default_rng(seed=0).standard_normal([11, 64], dtype=np.float32)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [64])
        y = tf.identity(x)
        summed = v1.tpu.cross_replica_sum(y, [list(range(len(values)))])
        rows = [{x.name: tf.constant(row)} for row in values]
        (copy,) = _run(_copy([Fetch(0, summed)], lambda: rows, ends_of_turns=[y]))
    expected = values[0]
    for row in values[1:]:
        expected = expected + row
    np.testing.assert_array_equal(copy, expected)


def test_loops_and_branches_are_copied_with_their_functions():
    with fresh_graph():
        x = v1.placeholder(tf.float32, [])
        weight = v1.get_variable("weight", initializer=2.0)
        y = tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * weight), (0, x))[1]
        y = tf.cond(y > 10, lambda: y + weight, lambda: y - weight)
        copies = _copy(
            [Fetch(0, y), Fetch(1, y)],
            lambda: [{x.name: tf.constant(1.0)}, {x.name: tf.constant(2.0)}],
            in_function=True,
        )
        assert _run(copies) == [6, 18]


def test_tables_are_shared():
    with fresh_graph():
        x = v1.placeholder(tf.string, [])
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=0
        )
        y = table.lookup(x)
        copies = _copy(
            [Fetch(0, y), Fetch(1, y)],
            lambda: [{x.name: tf.constant("b")}, {x.name: tf.constant("c")}],
            in_function=True,
        )
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            assert session.run(copies) == [2, 0]


def test_the_graph_grows_in_proportion_to_the_cores():
    def size(cores: int) -> int:
        with fresh_graph() as graph:
            x = v1.placeholder(tf.float32, [4])
            y = tf.reduce_sum(tf.tanh(x) * 2)
            before = len(graph.get_operations())
            given = tf.zeros([4])
            _copy([Fetch(c, y) for c in range(cores)], lambda: [{x.name: given}] * cores)
            return len(graph.get_operations()) - before

    assert size(16) - size(8) == size(24) - size(16)


def _of_replica(make_nodes, **options):
    """Copies nodes for one replica into its own graph."""
    with fresh_graph() as graph:
        nodes = make_nodes()
        copier = GraphCopier(graph)
    with tf.Graph().as_default():
        return copier.copy_replica(nodes, replaced={}, **options)


def test_a_replica_keeps_the_ops_that_read_others_and_runs_where_it_is_put():
    def sum_on_a_device():
        with tf.device("/device:CPU:1"):
            return [v1.tpu.cross_replica_sum(tf.constant(1.0))]

    (copy,) = _of_replica(sum_on_a_device)
    assert (copy.op.type, copy.device) == ("CrossReplicaSum", "")


def test_what_waits_for_an_op_that_a_replica_leaves_out_waits_for_what_that_waits_for():
    def three_in_a_row():
        count, one = v1.get_variable("count", initializer=0.0), tf.constant(1.0)
        with tf.control_dependencies([tf.no_op("first")]):
            second = tf.raw_ops.AssignAddVariableOp(resource=count.handle, value=one, name="second")
        with tf.control_dependencies([second]):
            return [tf.no_op("third"), second]

    third, second = _of_replica(three_in_a_row, left_out=["second"])
    assert second.type == "NoOp"
    assert third.control_inputs == [second]
    assert [op.name for op in second.control_inputs] == ["replica/first"]


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
