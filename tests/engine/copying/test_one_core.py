from __future__ import annotations

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tfx_tpu_trainer.engine.copying.one_core import (
    bypass_sums,
    put_on_one_core,
    reads_other_cores,
)
from tfx_tpu_trainer.engine.sessions.session_configs import placed_by_need
from tfx_tpu_trainer.engine.tracing import fresh_graph

v1 = tf.compat.v1


def _sum_and_number(x: tf.Tensor) -> tf.Tensor:
    return v1.tpu.cross_replica_sum(x) + tf.cast(gen_xla_ops.xla_replica_id(), tf.float32)


def test_a_graph_that_is_written_has_no_op_that_a_host_lacks():
    with fresh_graph() as graph:
        inside = tf.function(_sum_and_number, autograph=False)(tf.constant(2.0))
        tf.identity(_sum_and_number(inside), name="y")
        graph_def = graph.as_graph_def()
    assert reads_other_cores(graph_def)
    put_on_one_core(graph_def)
    assert not reads_other_cores(graph_def)
    with tf.Graph().as_default():
        (y,) = tf.graph_util.import_graph_def(graph_def, return_elements=["y:0"])
        with v1.Session() as session:
            # The addend, and twice a core's number, which is 0.
            assert session.run(y) == 2.0


def test_what_reads_a_sum_or_waits_for_it_has_its_addend():
    with fresh_graph() as graph:
        count = v1.get_variable("count", initializer=1.0)
        added = count.assign_add(1.0)
        total = v1.tpu.cross_replica_sum(added)
        with tf.control_dependencies([total.op]):
            waited = tf.constant(5.0) + 0
        doubled = total * 2
        bypass_sums(graph)
        with v1.Session(config=placed_by_need(None)) as session:
            session.run(v1.global_variables_initializer())
            assert session.run([doubled, waited]) == [4.0, 5.0]
            session.run(waited)
            assert session.run(count) == 3.0


def test_a_graph_without_a_sum_is_left_as_it_is(monkeypatch):
    def fails(*args, **kwargs):
        raise AssertionError("there is nothing to import")

    with fresh_graph() as graph:
        tf.function(lambda x: 2 * x, autograph=False)(tf.constant(1.0))
        before = graph.as_graph_def()
        monkeypatch.setattr(tf.graph_util, "import_graph_def", fails)
        bypass_sums(graph)
    assert graph.as_graph_def() == before
