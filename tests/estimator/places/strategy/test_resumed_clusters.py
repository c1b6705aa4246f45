"""Several processes that train together, killed and started again: each goes on with its own rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator import counting_model
from tests.estimator.places.strategy import counting_program, strategy_runs
from tfx_tpu_trainer import estimator as tfe

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[4]
SECONDS = 120
STEPS = 33


def _run(folder: Path, *runs: dict[str, Any]) -> list[list[int]]:
    """Runs clusters one after the other; returns the exit codes of their workers."""
    arguments = json.dumps([{"max_steps": STEPS, **run} for run in runs])
    command = [sys.executable, "-m", "tests.estimator.places.strategy.counting_program"]
    process = subprocess.Popen(
        [*command, str(folder), arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out = process.communicate(timeout=SECONDS)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return json.loads(out.splitlines()[-1])


def _logs(folder: Path, workers: int = 2) -> list[str]:
    """What the workers of the last run said."""
    return [(folder / f"{worker}.log").read_text() for worker in range(workers)]


def _trained(folder: Path) -> tfe.Estimator:
    return tfe.Estimator(counting_model.noisy_model_fn, str(folder / "model"))


def _in_one_process(folder: Path) -> tfe.Estimator:
    """The same steps by two replicas of one process, which draw what the workers draw."""

    def input_fn() -> tf.data.Dataset:
        parts = [counting_program.rows_of(worker) for worker in range(counting_program.WORKERS)]
        return tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(2).repeat())

    config = tfe.RunConfig(
        model_dir=str(folder / "expected"), train_distribute=strategy_runs.mirrored()
    )
    trained = tfe.Estimator(counting_model.noisy_model_fn, config=config)
    return trained.train(input_fn, max_steps=STEPS)


def _assert_rows_came_once(trained: tfe.Estimator) -> None:
    counts = trained.get_variable_value("counts")
    assert counts.sum() == STEPS * counting_model.BATCH
    # 33 steps of 2 rows are 5.5 epochs of the 12 rows that a worker has.
    assert set(counts) == {5, 6}


KILLED = [-signal.SIGKILL] * 2


def test_killed_workers_go_on_with_their_own_rows_and_end_with_the_same_model(tmp_path):
    assert _run(tmp_path, {"die_at": 13}, {}) == [KILLED, [0, 0]], _logs(tmp_path)
    for host, log in enumerate(_logs(tmp_path)):
        assert log.count("The input resumes at its position of step 10") == 1, log
        assert f"input_position/host{host}-10" in log
    _assert_rows_came_once(_trained(tmp_path))
    counting_model.assert_equal(_trained(tmp_path), _in_one_process(tmp_path))


@pytest.mark.sweep
def test_a_chief_that_dies_before_its_checkpoint_takes_them_to_the_one_before(tmp_path):
    assert _run(tmp_path, {"die_before_saving": 20}, {}) == [KILLED, [0, 0]], _logs(tmp_path)
    for log in _logs(tmp_path):
        assert log.count("The input resumes at its position of step 10") == 1, log
    counting_model.assert_equal(_trained(tmp_path), _in_one_process(tmp_path))


@pytest.mark.sweep
def test_a_signal_to_one_of_them_stops_all_at_the_same_step(tmp_path):
    assert _run(tmp_path, {"stop_at": 13}) == [[143, 143]], _logs(tmp_path)
    for log in _logs(tmp_path):
        assert "Training was stopped by SIGTERM. Start it again to resume from" in log, log
    assert _trained(tmp_path).get_variable_value("global_step") == 13
    assert _run(tmp_path, {}) == [[0, 0]], _logs(tmp_path)
    counting_model.assert_equal(_trained(tmp_path), _in_one_process(tmp_path))


@pytest.mark.sweep
def test_an_input_that_ends_is_read_to_its_end(tmp_path):
    runs = {"epochs": 3, "die_at": 13}, {"epochs": 3}, {"epochs": 3}
    assert _run(tmp_path, *runs) == [KILLED, [0, 0], [0, 0]], _logs(tmp_path)
    assert set(_trained(tmp_path).get_variable_value("counts")) == {3}


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_starts_the_input_anew_and_says_so(tmp_path, workers):
    _run(tmp_path, {"max_steps": 10}, {"max_steps": 20, "workers": workers})
    for host, log in enumerate(_logs(tmp_path, workers)):
        line = "number of hosts differ" if host < 2 else "step 10 has no input position"
        assert log.count(line) == 1, log
    assert _trained(tmp_path).get_variable_value("global_step") == 20
