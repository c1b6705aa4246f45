"""A process that calls train, evaluate, predict and export again and again stays as it is."""

import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator import counting_model, each_place, linear_model
from tests.estimator._engine.event_files import open_files
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import export, tpu

v1 = tf.compat.v1

_INPUT_FN = linear_model.full_batches_input_fn
_RECEIVER_FN = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3])})


def _make(place: str, folder: Path, model_fn: Callable[..., Any]) -> tfe.Estimator:
    if place != "strategy":
        return each_place.estimator(folder, place, model_fn)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = tfe.RunConfig(str(folder), train_distribute=strategy, eval_distribute=strategy)
    return tfe.Estimator(
        lambda features, labels, mode, params: model_fn(
            features, labels, mode, params
        ).as_estimator_spec(),
        config=config,
        params={"batch_size": 8},
    )


def _calls(made: tfe.Estimator, folder: Path) -> list[Callable[[], Any]]:
    """One call of each kind; a prediction that is left before its end is one more."""
    return [
        lambda: made.train(_INPUT_FN, steps=2),
        lambda: made.evaluate(_INPUT_FN, steps=2),
        lambda: list(made.predict(linear_model.input_fn)),
        lambda: next(made.predict(_INPUT_FN)),
        lambda: made.export_saved_model(str(folder / "exports"), _RECEIVER_FN),
    ]


@contextlib.contextmanager
def _collector(*, frozen: bool, enabled: bool):
    """Lets the collector see the objects of imports too, which conftest.py has it pass by, or run never."""
    if not frozen:
        gc.unfreeze()
    if not enabled:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not frozen:
            gc.freeze()


def _threads() -> set[threading.Thread]:
    """Python's own: those of TensorFlow's pools are made once."""
    return {each for each in threading.enumerate() if each.name != "EventLoggerThread"}


@pytest.mark.parametrize("place", ["host", "cores", "strategy"])
def test_calls_leave_no_graph_no_thread_and_no_file_of_a_former_model_dir(place, tmp_path):
    original_model_fn, former_threads = linear_model.model_fn_for(tpu), _threads()
    made = _make(place, tmp_path / "0", original_model_fn)
    with _collector(frozen=True, enabled=False):
        for call in _calls(made, tmp_path):
            call()
            left = _threads() - former_threads
            for thread in left:
                thread.join(timeout=5)
            assert [thread.name for thread in left if thread.is_alive()] == []

    former: list[weakref.ref[tf.Graph]] = []
    made_now: list[weakref.ref[tf.Graph]] = []
    kept: list[int] = []

    def model_fn(features, labels, mode, params):
        for thread in threading.enumerate():
            # A session may go on closing for a moment after its call.
            if thread.name == "session-close":
                thread.join()
        gc.collect()
        kept.append(sum(graph() is not None for graph in former))
        made_now.append(weakref.ref(v1.get_default_graph()))
        return original_model_fn(features, labels, mode, params)

    made = _make(place, tmp_path / "1", model_fn)
    with _collector(frozen=False, enabled=True):
        for call in _calls(made, tmp_path):
            call()
            former += made_now
            made_now.clear()
    assert len(former) >= 5
    assert kept == [0] * len(kept)
    assert open_files(tmp_path) == {"1", "1/eval"}


@pytest.mark.sweep
@pytest.mark.parametrize("place", ["host", "emulated"])
def test_killed_at_random_moments_it_ends_with_the_same_model(tmp_path, place):
    steps, moments, kills = 4_000, random.Random(place), 0
    expected, killed = tmp_path / "expected", tmp_path / "killed"
    program = [sys.executable, "-m", "tests.estimator.counting_model"]
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
