"""`stall_timeout_secs`: a session that makes no step ends, and the next attempt goes on."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.estimator import counting_model, stalled_training
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import EXIT_CODE, StalledError

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.mark.e2e
@mostly_swept("place", ["host", "cores"], kept=["cores"])
def test_a_training_whose_input_stops_ends_and_the_next_attempt_goes_on(tmp_path, place):
    estimator = stalled_training.make(tmp_path, place, stall_timeout_secs=4)
    with pytest.raises(StalledError, match="Training has finished no step"):
        estimator.train(stalled_training.stuck_in_tensorflow, max_steps=40)
    assert checkpoints.global_step_of(str(tmp_path)) == 20
    estimator.train(counting_model.shuffled, max_steps=40)
    assert checkpoints.global_step_of(str(tmp_path)) == 40


@pytest.mark.sweep
@pytest.mark.e2e
def test_an_evaluation_ends_too(tmp_path):
    estimator = stalled_training.make(tmp_path, "host", stall_timeout_secs=3)
    with pytest.raises(StalledError, match="Evaluation has finished no batch"):
        estimator.evaluate(stalled_training.stuck_in_tensorflow)


@pytest.mark.e2e
@pytest.mark.sweep
@pytest.mark.parametrize("place", ["host", "strategy"])
def test_where_nothing_can_be_cancelled_the_process_ends(tmp_path, place):
    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "tests.estimator.stalled_training", tmp_path, place, *words],
            cwd=REPOSITORY,
            env={**os.environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    ended = run()
    assert ended.returncode == EXIT_CODE, ended.stderr
    assert "ended" not in ended.stdout
    lines = ended.stderr.splitlines()
    assert "StalledError: Training has finished no step for" in lines[-1]
    # Where the input waits, which is what has to be found.
    assert any("threading.Event().wait()" in line for line in lines)
    assert checkpoints.global_step_of(str(tmp_path)) == 20
    ended = run("goes_on")
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
    assert checkpoints.global_step_of(str(tmp_path)) == 40
