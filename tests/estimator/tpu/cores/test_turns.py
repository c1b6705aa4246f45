from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu.cores import turns

v1 = tf.compat.v1

ALL = [[0, 1, 2]]


def _summed_loss(x):
    """Gradients of two variables, 12 and 4 bytes, summed over three cores."""
    variables = [
        v1.get_variable(name, initializer=[1.0] * size) for name, size in (("a", 3), ("b", 1))
    ]
    loss = tf.reduce_sum(tf.square(variables[0] * x + variables[1]))
    gradients = tf.gradients(loss, variables)
    return loss, gradients, [v1.tpu.cross_replica_sum(gradient, ALL) for gradient in gradients]


def _ends(x, nodes, cores: int = 3):
    copier = GraphCopier(v1.get_default_graph())
    return turns.ends_of_turns(copier, nodes, inputs=[x], cores=cores)


@pytest.mark.parametrize(("most", "in_turns"), [(31, True), (32, False)])
def test_cores_take_turns_if_the_others_gradients_are_too_large(monkeypatch, most, in_turns):
    monkeypatch.setattr(turns, "_MOST_BYTES_AT_ONCE", most)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [3])
        loss, gradients, sums = _summed_loss(x)
        ends = _ends(x, [loss, *sums])
        assert {end.name for end in ends} == ({g.name for g in gradients} if in_turns else set())


def test_one_core_takes_no_turns(monkeypatch):
    monkeypatch.setattr(turns, "_MOST_BYTES_AT_ONCE", 0)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [3])
        assert _ends(x, _summed_loss(x)[2], cores=1) == []


def _normalized_over_cores(x):
    return _summed_loss(x - v1.tpu.cross_replica_sum(x, ALL) / 9)[2]


def _after_a_moving_average(x):
    average = v1.get_variable("average", initializer=0.0)
    with tf.control_dependencies([average.assign_add(tf.reduce_sum(x), read_value=False)]):
        return _summed_loss(x)[2]


@pytest.mark.parametrize("make", [_normalized_over_cores, _after_a_moving_average])
def test_cores_that_need_each_other_before_the_end_run_side_by_side(monkeypatch, make):
    monkeypatch.setattr(turns, "_MOST_BYTES_AT_ONCE", 0)
    with fresh_graph():
        x = v1.placeholder(tf.float32, [3])
        assert _ends(x, make(x)) == []


def test_a_core_reads_its_input_after_the_gradients_of_the_one_before():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [3])
        loss, gradients, sums = _summed_loss(x)
        rows = [tf.constant([1.0, 2.0, core]) for core in range(3)]
        fetches = [Fetch(core, loss) for core in range(3)] + [Fetch(0, each) for each in sums]
        copies = GraphCopier(graph).copy(
            fetches, replaced=[{x.name: row} for row in rows], name="cores", ends_of_turns=gradients
        )
        readers = {row.name: row.consumers() for row in rows}
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            *losses, of_a, of_b = session.run(copies)
    for core, row in enumerate(rows):
        waited_for = {op.name for reader in readers[row.name] for op in upstream([reader])}
        before = {f"cores/core{core - 1}/{gradient.op.name}" for gradient in gradients}
        assert before <= waited_for or core == 0
    # (x + 1)^2 and its gradients, 2 (x + 1) x and 2 (x + 1).
    numbers = [[1.0, 2.0, core] for core in range(3)]
    assert losses == [sum((x + 1) ** 2 for x in row) for row in numbers]
    assert of_a.tolist() == [sum(2 * (x + 1) * x for x in column) for column in zip(*numbers)]
    assert of_b.tolist() == [sum(2 * (x + 1) for row in numbers for x in row)]
