from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.copying.graph_copy import GraphCopier
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.places.strategy.replica_stages import ReplicaStages

v1 = tf.compat.v1

REPLICAS = 3


def _run(graph: ReplicaStages, replaced, **options):
    """Copies the graph into a function and calls it; every replica has the same addends."""
    rounds = []

    def sum_over_replicas(addends):
        rounds.append(len(addends))
        return [addend * REPLICAS for addend in addends]

    def call():
        copies = graph.copy(replaced(), sum_over_replicas=sum_over_replicas, **options)
        effects = [copy for copy in copies if isinstance(copy, tf.Operation)]
        with tf.control_dependencies(effects):
            return [tf.identity(copy) for copy in copies if not isinstance(copy, tf.Operation)]

    return [tensor.numpy() for tensor in tf.function(call, autograph=False)()], rounds


def test_sums_that_feed_sums_are_made_in_as_many_rounds():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [2])
        first = v1.tpu.cross_replica_sum(x)
        beside = v1.tpu.cross_replica_sum(x * 2)
        second = v1.tpu.cross_replica_sum(first + x)
        third = v1.tpu.cross_replica_sum(second * beside)
        replica = ReplicaStages(GraphCopier(graph), [third, x, first], inputs=[x])
    value = np.array([1.0, -2.0], np.float32)
    (total, same, once), rounds = _run(replica, lambda: {x.name: tf.constant(value)})
    assert rounds == [2, 1, 1]
    np.testing.assert_allclose(same, value)
    np.testing.assert_allclose(once, 3 * value)
    np.testing.assert_allclose(total, 3 * (3 * (3 * value + value)) * (3 * 2 * value))


def test_an_assignment_before_a_sum_is_made_once_and_waited_for():
    with fresh_graph() as graph:
        x = v1.placeholder(tf.float32, [])
        count = v1.get_variable("count", initializer=0.0)
        counted = tf.group(count.assign_add(x, read_value=False))
        total = v1.tpu.cross_replica_sum(x)
        with tf.control_dependencies([counted, total]):
            after = count.read_value() + total
        replica = ReplicaStages(GraphCopier(graph), [after, counted], inputs=[x])
    ours = tf.Variable(10.0)
    given = {x.name: tf.constant(1.0)}
    (value,), _ = _run(
        replica, lambda: {**given, **{handle.name: ours.handle for handle in replica.handles}}
    )
    assert value == 10 + 1 + REPLICAS
    assert ours.numpy() == 11


def test_replicas_draw_different_numbers_and_each_draws_them_once():
    with fresh_graph(seed=7) as graph:
        drawn = tf.random.uniform([1000])
        total = v1.tpu.cross_replica_sum(drawn)
        replica = ReplicaStages(GraphCopier(graph), [drawn, total], inputs=[])
    (drawn0, total0), _ = _run(replica, dict, replica=0)
    (drawn1, total1), _ = _run(replica, dict, replica=1)
    np.testing.assert_allclose(total0, drawn0 * REPLICAS)
    np.testing.assert_allclose(total1, drawn1 * REPLICAS)
    assert np.abs(drawn0 - drawn1).max() > 0.1


def test_sums_over_a_group_of_the_replicas_are_refused():
    with fresh_graph() as graph:
        total = v1.tpu.cross_replica_sum(tf.constant(1.0), group_assignment=[[0, 1], [2, 3]])
        with pytest.raises(ValueError, match=r"\[\[0, 1\], \[2, 3\]\].*group_assignment"):
            ReplicaStages(GraphCopier(graph), [total], inputs=[])
