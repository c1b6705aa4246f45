"""A process that is killed at any moment and started again trains the same model."""

import random
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from tests.estimator import counting_model


@pytest.mark.sweep
@pytest.mark.parametrize("place", ["host", "emulated"])
def test_killed_at_random_moments_it_ends_with_the_same_model(tmp_path, place):
    steps, moments, kills = 4_000, random.Random(place), 0
    expected, killed = tmp_path / "expected", tmp_path / "killed"
    program = [sys.executable, "-m", "tests.estimator.killed_program"]
    subprocess.run([*program, expected, str(steps), place], check=True)
    while kills < 5:
        process = subprocess.Popen([*program, killed, str(steps), place])
        _wait_for_checkpoint_after(killed, process)
        time.sleep(moments.uniform(0, 0.5))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    subprocess.run([*program, killed, str(steps), place], check=True)
    assert kills >= 2
    counting_model.assert_equal(
        counting_model.estimator(killed), counting_model.estimator(expected)
    )


def _wait_for_checkpoint_after(folder, process):
    """Waits until a training has written a checkpoint, or has ended."""
    before = tf.train.latest_checkpoint(folder)
    end = time.monotonic() + 120
    while tf.train.latest_checkpoint(folder) == before and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.05)
