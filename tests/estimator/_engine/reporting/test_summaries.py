"""Which event files stay open from one call to the next, and that nothing that is written gets lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tests.estimator._engine.event_files import open_files, read_values
from tests.test_disks import full_disk
from tfx_tpu_trainer.estimator._engine.reporting.summaries import HostCallHook, events_of
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


def _write(writer: v1.summary.FileWriter, step: int) -> None:
    writer.add_summary(v1.Summary(value=[v1.Summary.Value(tag="loss", simple_value=step)]), step)


def _call(model_dir: Path, step: int = 0, *, folders: tuple[str, ...] = ("",)) -> None:
    with events_of(str(model_dir)), tf.Graph().as_default():
        for folder in folders:
            _write(v1.summary.FileWriterCache.get(str(model_dir / folder)), step)


def _files(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if "tfevents" in name]


def _threads() -> int:
    return sum(thread.name == "EventLoggerThread" for thread in threading.enumerate())


def test_only_the_model_dir_that_was_used_last_keeps_threads_and_files(tmp_path):
    _call(tmp_path / "0", folders=("", "eval"))
    before = _threads()
    for number in range(1, 11):
        _call(tmp_path / str(number), folders=("", "eval"))
    assert open_files(tmp_path) == {"10", "10/eval"}
    assert _threads() == before


def test_calls_in_one_model_dir_write_one_file(tmp_path):
    for step in range(3):
        _call(tmp_path / "a", step)
    assert len(_files(tmp_path / "a")) == 1
    assert read_values(tmp_path / "a")["loss"] == {0: 0, 1: 1, 2: 2}


def test_calls_that_take_turns_within_a_second_overwrite_nothing(tmp_path):
    for step in range(4):
        _call(tmp_path / "a", step)
        _call(tmp_path / "b", step)
    for name in "ab":
        assert read_values(tmp_path / name)["loss"] == {0: 0, 1: 1, 2: 2, 3: 3}


def test_a_writer_that_someone_holds_writes_after_its_file_was_closed(tmp_path):
    _call(tmp_path / "a")
    with tf.Graph().as_default():
        held = v1.summary.FileWriterCache.get(str(tmp_path / "a"))
    _call(tmp_path / "b")
    held.flush()
    held.close()
    held.reopen()
    assert len(_files(tmp_path / "a")) == 1
    assert held.get_logdir() == str(tmp_path / "a")
    _write(held, 1)
    assert read_values(tmp_path / "a")["loss"] == {0: 0, 1: 1}


def test_folders_elsewhere_stay_open(tmp_path):
    with tf.Graph().as_default():
        for name in ("runs/10", "own"):
            _write(v1.summary.FileWriterCache.get(str(tmp_path / name)), 0)
    _call(tmp_path / "runs/1")
    _call(tmp_path / "runs/2")
    assert open_files(tmp_path) == {"runs/10", "own", "runs/2"}


def test_a_model_dir_that_was_removed_is_no_error(tmp_path):
    _call(tmp_path / "a")
    for name in _files(tmp_path / "a"):
        os.remove(tmp_path / "a" / name)
    os.rmdir(tmp_path / "a")
    _call(tmp_path / "b")
    _call(tmp_path / "a", 1)
    assert read_values(tmp_path / "a")["loss"] == {1: 1}


def test_a_call_elsewhere_goes_on_where_the_last_events_can_not_be_written(tmp_path, caplog):
    _call(tmp_path / "a", 0)
    _call(tmp_path / "a", 1)
    with full_disk():
        _call(tmp_path / "b", folders=())
    assert f"The last events of {tmp_path}/a can't be written" in caplog.text
