"""A process that calls train, evaluate, predict and export again and again stays as it is."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator import each_place, linear_model
from tests.estimator._engine.event_files import open_files
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import export, tpu

v1 = tf.compat.v1

everywhere = pytest.mark.parametrize("place", ["host", "cores", "strategy"])

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


@pytest.fixture
def nothing_frozen():
    """The collector sees all objects, as in a program; conftest.py has it pass by those of imports."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture
def nothing_collected():
    gc.disable()
    yield
    gc.enable()


@everywhere
@pytest.mark.usefixtures("nothing_frozen")
def test_the_collector_finds_the_graphs_of_former_calls_while_a_call_runs(place, tmp_path):
    former: list[weakref.ref[tf.Graph]] = []
    made_now: list[weakref.ref[tf.Graph]] = []
    kept: list[int] = []
    original_model_fn = linear_model.model_fn_for(tpu)

    def model_fn(features, labels, mode, params):
        for thread in threading.enumerate():
            # A session may go on closing for a moment after its call.
            if thread.name == "session-close":
                thread.join()
        gc.collect()
        kept.append(sum(graph() is not None for graph in former))
        made_now.append(weakref.ref(v1.get_default_graph()))
        return original_model_fn(features, labels, mode, params)

    made = _make(place, tmp_path, model_fn)
    for call in _calls(made, tmp_path):
        call()
        former += made_now
        made_now.clear()
    assert len(former) >= 5
    assert kept == [0] * len(kept)


@everywhere
@pytest.mark.usefixtures("nothing_collected")
def test_a_call_leaves_no_thread_for_the_collector_to_end(place, tmp_path):
    former = threading.enumerate()
    made = _make(place, tmp_path, linear_model.model_fn_for(tpu))
    for call in _calls(made, tmp_path):
        call()
        # Python's own: those of TensorFlow's pools are made once.
        left = [
            thread
            for thread in threading.enumerate()
            if thread not in former and thread.name != "EventLoggerThread"
        ]
        for thread in left:
            thread.join(timeout=5)
        assert [thread.name for thread in left if thread.is_alive()] == []


@everywhere
def test_a_model_dir_that_was_left_has_no_files_open(place, tmp_path):
    for number in range(3):
        made = _make(place, tmp_path / str(number), linear_model.model_fn_for(tpu))
        for call in _calls(made, tmp_path):
            call()
    assert open_files(tmp_path) == {"2", "2/eval"}
