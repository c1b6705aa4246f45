"""Kills exporting processes: a server finds a complete model, or none."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import REPOSITORY
from tests.serving import exporting
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.serving import load_serving


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    exporting.write_checkpoint(str(folder))
    return folder


# Up to here an export builds its graphs, after that it writes.
_WRITING = 0.3


def _kill_while_exporting(base: Path, checkpoint: Path, moment: float) -> None:
    """Kills a process in its second export, at a moment from 0, its beginning, to 1, its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", exporting.__name__, str(base), str(checkpoint)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        seen = set(_unfinished(base))
        _wait_for(process, "begins")
        began = time.monotonic()
        seen |= _wait_for_writing(base, seen)
        began_writing = time.monotonic()
        _wait_for(process, "ended")
        ended = time.monotonic()
        _wait_for(process, "begins")
        if moment < _WRITING:
            time.sleep(moment / _WRITING * (began_writing - began))
        else:
            _wait_for_writing(base, seen)
            time.sleep((moment - _WRITING) / (1 - _WRITING) * (ended - began_writing))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _unfinished(base: Path) -> set[str]:
    return {path.name for path in base.glob("temp-*")}


def _wait_for_writing(base: Path, before: set[str]) -> set[str]:
    deadline = time.monotonic() + 120
    while not (new := _unfinished(base) - before):
        assert time.monotonic() < deadline, "no export has begun to write"
        time.sleep(0.001)
    return new


def _wait_for(process: subprocess.Popen, line: str) -> None:
    found = process.stdout.readline().strip()
    assert found == line, f"the exporting process ended with {process.wait()}"


def _check(base: Path) -> tuple[int, int]:
    """Checks every version; gives their number, and that of the unfinished ones."""
    names = [path.name for path in base.iterdir()]
    versions = [name for name in names if name.isdigit()]
    unfinished = [name for name in names if name.startswith("temp-")]
    assert sorted(names) == sorted(versions + unfinished)
    for version in versions:
        signatures = load_serving(str(base / version)).signatures
        found = signatures["serving_default"](x=tf.constant(exporting.ROWS))["y"]
        sums = np.sum(exporting.ROWS, axis=1)
        np.testing.assert_allclose(found, np.stack([sums, sums], axis=1), rtol=1e-3)
        ids = signatures["ids"](word=tf.constant([*exporting.WORDS, "c"]))["id"]
        assert ids.numpy().tolist() == [0, 1, -1]
    return len(versions), len(unfinished)


@pytest.mark.e2e
@mostly_swept("moment", [0.15, 0.5, 0.9], kept=[0.5])
def test_every_version_is_complete(checkpoint, tmp_path, moment):
    _kill_while_exporting(tmp_path / "versions", checkpoint, moment)
    versions, unfinished = _check(tmp_path / "versions")
    assert versions >= 1
    assert versions + unfinished <= 3


@pytest.mark.sweep
def test_killed_at_twenty_random_moments_every_version_is_complete(checkpoint, tmp_path):
    random_moments = random.Random(20)
    all_unfinished = 0
    for attempt in range(20):
        base = tmp_path / str(attempt)
        _kill_while_exporting(base, checkpoint, random_moments.uniform(0, 1.1))
        versions, unfinished = _check(base)
        assert versions >= 1
        all_unfinished += unfinished
        shutil.rmtree(base)
    # Else nothing was killed in the middle of its writing.
    assert all_unfinished >= 3
