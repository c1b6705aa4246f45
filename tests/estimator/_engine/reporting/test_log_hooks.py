from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator._engine.event_files import read_values
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer._support.progress_views import LinePace
from tfx_tpu_trainer.estimator._engine.reporting.log_hooks import LossLogHook, ThroughputHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _step_through(steps: int, hook: ThroughputHook) -> None:
    with fresh_graph():
        train_op = v1.train.get_global_step().assign_add(1)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(steps):
                session.run(train_op)


@pytest.mark.behaviour(390, 391)
def test_rates_are_written_every_n_steps_after_the_first(tmp_path):
    _step_through(9, ThroughputHook(every_n_steps=3, batch_size=32, output_dir=str(tmp_path)))
    values = read_values(tmp_path)
    steps, examples = values["global_step/sec"], values["examples/sec"]
    assert sorted(steps) == sorted(examples) == [4, 7]
    for at, rate in steps.items():
        assert rate > 0
        assert examples[at] == pytest.approx(32 * rate, rel=1e-5)


@pytest.mark.behaviour(394)
def test_without_a_batch_size_only_steps_are_reported(tmp_path):
    _step_through(5, ThroughputHook(every_n_steps=2, batch_size=None, output_dir=str(tmp_path)))
    values = read_values(tmp_path)
    assert sorted(values["global_step/sec"]) == [3, 5]
    assert "examples/sec" not in values


@pytest.mark.behaviour(395)
def test_without_a_folder_rates_are_logged_only(tmp_path, caplog):
    with log_lines(caplog) as logged:
        _step_through(3, ThroughputHook(every_n_steps=1, batch_size=8, output_dir=None))
    assert sum(line.startswith("global_step/sec: ") for line in logged) == 1
    assert sum(line.startswith("examples/sec: ") for line in logged) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_two_lines_of_a_kind_come_within_five_seconds_and_the_events_have_all(tmp_path, caplog):
    now = [0.0]
    clock = lambda: now[0]  # noqa: E731

    def loss_of(step):
        now[0] += 1.0
        return np.float32(step)

    with fresh_graph(), log_lines(caplog) as logged:
        step = v1.train.get_global_step()
        train_op = step.assign_add(1)
        with tf.control_dependencies([train_op]):
            loss = tf.numpy_function(loss_of, [step.read_value()], tf.float32)
        hooks = [
            LossLogHook(loss, every_n_steps=2, pace=LinePace(clock=clock)),
            ThroughputHook(every_n_steps=2, output_dir=str(tmp_path), pace=LinePace(clock=clock)),
        ]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(20):
                session.run([train_op, loss])
    shown = [int(line.split("step = ")[1].split()[0]) for line in logged if "loss = " in line]
    # A step takes a second. The line shows the step before the one that is reached.
    assert shown == [0, 5, 10, 15]
    assert sum(line.startswith("global_step/sec: ") for line in logged) == 3
    assert sorted(read_values(tmp_path)["global_step/sec"]) == list(range(3, 20, 2))


def test_a_global_step_that_stands_still_is_told_of_five_times(tmp_path, caplog):
    with fresh_graph(), log_lines(caplog) as logged:
        v1.train.get_global_step()
        nothing = tf.no_op()
        hook = ThroughputHook(every_n_steps=3, output_dir=None)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(9):
                session.run(nothing)
    said = [line for line in logged if line.startswith("It seems that global step")]
    assert len(said) == 5
    assert "Current value (could be stable): 0 vs previous value: 0" in said[0]
