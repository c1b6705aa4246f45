from __future__ import annotations

import pytest
import tensorflow as tf

from tests.estimator._engine.event_files import read_values
from tfx_tpu_trainer.estimator._engine.reporting.summary_hooks import HostCallHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _summarizing_host_call(folder, step: tf.Tensor, value: tf.Tensor):
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default(step):
        tf.summary.scalar("value", value)
        return v1.summary.all_v2_summary_ops()


@pytest.mark.behaviour(247)
def test_v2_summaries_are_written_and_flushed(tmp_path):
    with fresh_graph():
        step = v1.train.get_global_step()
        before = step.read_value()
        fetches = _summarizing_host_call(tmp_path, before, tf.cast(before, tf.float32) * 10)
        with tf.control_dependencies([before]):
            train_op = step.assign_add(1)
        with v1.train.MonitoredSession(hooks=[HostCallHook(fetches)]) as session:
            for _ in range(3):
                session.run(train_op)
    assert read_values(tmp_path)["value"] == {0: 0, 1: 10, 2: 20}


@pytest.mark.behaviour(247)
def test_two_writers_are_both_flushed(tmp_path):
    with fresh_graph():
        step = v1.train.get_global_step().read_value()
        fetches = [
            _summarizing_host_call(tmp_path / name, step, tf.constant(number))
            for name, number in (("one", 1.0), ("two", 2.0))
        ]
        step_op = tf.no_op()
        # all_v2_summary_ops gives those of the graph, so what the second call returned has both.
        with v1.train.MonitoredSession(hooks=[HostCallHook(fetches[1])]) as session:
            session.run(step_op)
    assert read_values(tmp_path / "one")["value"] == {0: 1}
    assert read_values(tmp_path / "two")["value"] == {0: 2}


@pytest.mark.behaviour(253)
def test_a_lone_tensor_and_nested_ops_run():
    with fresh_graph():
        counter = v1.get_variable("counter", initializer=0)
        total, step_op = v1.train.FinalOpsHook(counter.read_value()), tf.no_op()
        nested = {"a": [counter.assign_add(1, read_value=False)], "b": tf.constant(1)}
        hooks = [HostCallHook(nested), HostCallHook(tf.constant("lone")), total]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            session.run(step_op)
            session.run(step_op)
    assert total.final_ops_values == 2
