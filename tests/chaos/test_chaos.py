"""Runs the kill sweep in its own process, since the processes it forks must not have run anything."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

_SMALL = ("--rows", "256", "--steps", "60", "--evaluations", "1", "--no-check")


def _sweep(folder, *options):
    seen = folder / "seen.json"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos.run", "--json", str(seen), *options],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-6000:]
    return json.loads(seen.read_text())


def _assert_promises_kept(seen, *, kills, pauses):
    assert sum(seen["kills"].values()) == kills == seen["restarts"]
    assert seen["trainings"] == seen["equal"] == seen["rows_equal"] >= bool(kills)
    assert seen["manual_steps"] == seen["half_written"] == 0
    assert seen["pauses"] == seen["newer_as_alone"] == pauses
    assert seen["problems"] == []


@pytest.mark.matrix
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("kills", "pauses", "seed"),
    [
        # SIGKILL in the second half of the training, and SIGTERM in the export.
        (2, 0, 34),
        # A pause takes two more trainings; test_checkpoint_folder.py lets one attempt overtake another.
        pytest.param(5, 1, 1, marks=pytest.mark.sweep),
    ],
)
def test_killed_or_paused_it_leaves_what_an_untouched_training_leaves(
    tmp_path, kills, pauses, seed
):
    how_often = ("--kills", str(kills), "--pauses", str(pauses), "--seed", str(seed))
    seen = _sweep(tmp_path, *how_often, "--models", "digits", "--places", "host", *_SMALL)
    _assert_promises_kept(seen, kills=kills, pauses=pauses)


@pytest.mark.sweep
def test_killed_forty_times_on_the_host_and_on_cores(tmp_path):
    seen = _sweep(tmp_path, "--kills", "40", "--pauses", "0", "--seed", "2")
    _assert_promises_kept(seen, kills=40, pauses=0)


@pytest.mark.sweep
def test_paused_at_forty_of_its_writes(tmp_path):
    how_often = ("--kills", "0", "--pauses", "40", "--seed", "3", "--jobs", "2")
    seen = _sweep(tmp_path, *how_often, "--models", "digits", "--places", "host", *_SMALL)
    _assert_promises_kept(seen, kills=0, pauses=40)
