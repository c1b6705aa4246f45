"""What the chief tells the others, and what they make of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.trainer import workers
from tfx_tpu_trainer.components.trainer.workers import (
    STATUS_FILE,
    ChiefFailedError,
    ChiefStatus,
    ChiefWatch,
)


def _watch(folder, **seconds):
    return ChiefWatch(str(folder), **{"poll_secs": 0.01, **seconds})


def _status(folder, **seconds):
    return ChiefStatus(str(folder), **{"beat_secs": 0.02, **seconds})


def test_from_the_start_to_the_end(tmp_path):
    watch = _watch(tmp_path)
    assert watch.state() is None and watch.is_training()
    with _status(tmp_path).reported() as status:
        assert watch.state() == "training"
        status.finishing()
        assert watch.state() == "finishing" and not watch.is_training()
        time.sleep(0.1)
        assert watch.state() == "finishing"
    watch.wait_for_end()
    # One that starts late is not kept waiting.
    _watch(tmp_path).wait_for_end()


def test_what_a_host_waits_for_is_in_words(tmp_path):
    watch = _watch(tmp_path, quiet_secs=0.3, start_secs=7, silent_secs=5)
    path = tmp_path / STATUS_FILE
    assert watch.awaited() == f"the chief of this training to start, which writes {path}"
    with _status(tmp_path).reported() as status:
        watch.state()
        assert watch.awaited() is None
        status.finishing()
        watch.state()
        assert watch.awaited().endswith("to evaluate, export and write the artifacts")
        time.sleep(0.4)
        said = f"a sign of life of the chief in {path}; the last one is "
        assert watch.awaited().startswith(said)
    assert watch.bounds == (
        "This host ends 7 s after its start if no chief has started (start_timeout_secs), and 5 s "
        "after the chief's last sign of life."
    )


def test_a_failure_reaches_the_others_with_its_reason(tmp_path):
    watch = _watch(tmp_path)
    with pytest.raises(ArithmeticError), _status(tmp_path).reported():
        raise ArithmeticError("no luck")
    with pytest.raises(ChiefFailedError, match="ArithmeticError: no luck"):
        watch.wait_for_end()


def test_the_failure_of_an_earlier_attempt_is_not_this_ones(tmp_path):
    with pytest.raises(ArithmeticError), _status(tmp_path).reported():
        raise ArithmeticError
    watch = _watch(tmp_path)
    assert watch.state() is None
    with _status(tmp_path).reported():
        assert watch.state() == "training"


def test_the_last_word_of_an_attempt_that_was_replaced_is_not_this_ones(tmp_path):
    def old_attempt():
        with _status(tmp_path, beat_secs=100).reported():
            yield
            raise ArithmeticError("of the old attempt")

    old = old_attempt()
    next(old)
    watch = _watch(tmp_path)
    with _status(tmp_path, beat_secs=100).reported():
        assert watch.state() == "training"
        with pytest.raises(ArithmeticError):
            next(old)
        assert watch.state() == "training"
        # Nor where both have written at once.
        failed = {"state": "failed", "attempt": "old", "started": 1.0, "beat": 9}
        (tmp_path / STATUS_FILE).write_text(json.dumps(failed))
        assert watch.state() == "training"
    watch.wait_for_end()


def test_a_silent_chief_is_given_up(tmp_path):
    watch = _watch(tmp_path, silent_secs=0.3)
    (tmp_path / STATUS_FILE).write_text('{"state": "training", "beat": 1}')
    with pytest.raises(
        ChiefFailedError, match=r"no sign of life for 0 seconds.*from its last check"
    ):
        watch.wait_for_end()


def test_signs_of_life_keep_the_others_waiting(tmp_path):
    watch = _watch(tmp_path, silent_secs=0.3)
    with _status(tmp_path).reported():
        for _ in range(8):
            time.sleep(0.1)
            assert watch.state() == "training"


def test_a_chief_that_never_starts_is_given_up(tmp_path):
    watch = _watch(tmp_path, start_secs=0.1)
    with pytest.raises(ChiefFailedError, match="has not started"):
        watch.wait_for_end()


@mostly_swept(("state", "code"), [("succeeded", 0), ("failed", 1)], kept=[("failed", 1)])
def test_a_host_that_hangs_ends_with_the_chief(tmp_path, state, code):
    program = (
        # By its path: its package takes ten seconds to import.
        "import runpy, sys, time\n"
        "ChiefWatch = runpy.run_path(sys.argv[1])['ChiefWatch']\n"
        "watch = ChiefWatch(sys.argv[2], poll_secs=0.01)\n"
        "print('ready', flush=True)\n"
        "with watch.ending_this_process(grace_secs=0.1): time.sleep(100)\n"
    )
    command = [sys.executable, "-c", program, workers.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        (tmp_path / STATUS_FILE).write_text(f'{{"state": "{state}"}}')
        assert process.wait(60) == code


def test_a_host_that_is_done_goes_on(tmp_path):
    before = threading.active_count()
    with _watch(tmp_path).ending_this_process(grace_secs=0):
        assert threading.active_count() == before + 1
    # Nothing is left that could end it later.
    assert threading.active_count() == before
