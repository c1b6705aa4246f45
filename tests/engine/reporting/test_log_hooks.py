from __future__ import annotations

import pytest
import tensorflow as tf

from tests.engine.event_files import read_values
from tests.engine.log_lines import log_lines
from tfx_tpu_trainer.engine.reporting.log_hooks import ThroughputHook
from tfx_tpu_trainer.engine.tracing import fresh_graph

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
    assert sum(line.startswith("global_step/sec: ") for line in logged) == 2
    assert sum(line.startswith("examples/sec: ") for line in logged) == 2
    assert list(tmp_path.iterdir()) == []
