"""Error handling: group T of behaviours.md."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import RETRIES
from tfx_tpu_trainer.estimator.export import build_raw_serving_input_receiver_fn

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix


class _RaisesOnce(v1.train.SessionRunHook):
    """Stands for a worker that goes away once, at the second session call."""

    def __init__(self, error: Exception) -> None:
        self.calls = 0
        self._error = error

    def before_run(self, run_context):
        self.calls += 1
        if self.calls == 2:
            raise self._error


@mostly_swept("use_tpu", [True, False], kept=[True])
@mostly_swept(
    "error",
    [tf.errors.AbortedError, tf.errors.UnavailableError],
    kept=[tf.errors.AbortedError],
)
@pytest.mark.behaviour(381)
def test_training_goes_on_from_its_checkpoint_when_a_worker_comes_back(tmp_path, use_tpu, error):
    hook = _RaisesOnce(error(None, None, "worker gone"))
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu, loop=1, save_checkpoints_steps=1)
    estimator.train(on_cores.train_input_fn, steps=4, hooks=[hook])
    assert hook.calls == 5
    assert estimator.get_variable_value("global_step") == 4
    # The input starts anew with the session: batch 0, and then 0, 1, 2 again.
    batches = linear_model.batches(on_cores.BATCH, epochs=2)
    *_, (_, weights, _) = linear_model.descend([batches[0], *batches[:3]])
    assert estimator.get_variable_value("linear/weights") == pytest.approx(weights, rel=1e-5)


class _Gone(v1.train.SessionRunHook):
    """Stands for a worker that goes away at the second session call, and stays away."""

    def __init__(self) -> None:
        self.calls = 0

    def before_run(self, run_context):
        self.calls += 1
        if self.calls > 1:
            raise tf.errors.UnavailableError(None, None, "worker gone")


@pytest.mark.sweep
@pytest.mark.parametrize("use_tpu", [True, False])
@pytest.mark.behaviour(382)
def test_a_worker_that_stays_away_ends_the_call_with_its_error(tmp_path, use_tpu):
    # A lift: the original retries forever, or drops the error and returns None.
    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu, loop=1, save_checkpoints_steps=1)
    training, prediction = _Gone(), _Gone()
    with pytest.raises(tf.errors.UnavailableError, match="worker gone"):
        estimator.train(on_cores.train_input_fn, steps=4, hooks=[training])
    assert training.calls == 2 + RETRIES
    assert estimator.get_variable_value("global_step") == 1
    with pytest.raises(tf.errors.UnavailableError, match="worker gone"):
        list(estimator.predict(linear_model.input_fn, hooks=[prediction]))
    # A retry would begin with the first row again.
    assert prediction.calls == 2


@mostly_swept("use_tpu", [True, False], kept=[True])
@mostly_swept(
    "error",
    [tf.errors.AbortedError, tf.errors.UnavailableError],
    kept=[tf.errors.UnavailableError],
)
@pytest.mark.behaviour(382)
def test_a_call_that_ends_in_such_an_error_raises_it(tmp_path, use_tpu, error):
    # A lift: the original drops it and returns None.
    def input_fn(params):
        raise error(None, None, "file server gone")

    estimator = on_cores.linear(tmp_path, use_tpu=use_tpu)
    for mode in on_cores.MODES:
        with pytest.raises(error, match="file server gone"):
            on_cores.run(estimator, mode, input_fn)


@mostly_swept("mode", on_cores.MODES, kept=["infer"])
@pytest.mark.behaviour(381, 383)
def test_an_error_of_the_input_comes_out_as_itself_and_at_once(tmp_path, mode):
    # A lift of 383: the original closes the session 5 seconds later.
    failed = []

    def fail(value):
        failed.append(time.monotonic())
        raise ZeroDivisionError("in the input")

    def input_fn(params):
        def failing(features, labels):
            result = tf.py_function(fail, [labels], labels.dtype)
            return features, tf.ensure_shape(result, labels.shape)

        return on_cores.train_input_fn(params).map(failing)

    with pytest.raises(tf.errors.OpError, match="in the input") as raised:
        on_cores.run(on_cores.linear(tmp_path), mode, input_fn)
    assert time.monotonic() - failed[0] < 4
    assert not isinstance(raised.value, tf.errors.CancelledError)


@pytest.mark.behaviour(386)
def test_after_an_input_fn_that_raised_an_export_gets_no_batch_size(tmp_path):
    # A lift: in the original a flag stays set, and model_fn gets one.
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((mode, sorted(params)))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    def fails(params):
        raise ZeroDivisionError

    estimator = on_cores.make(tmp_path, model_fn, use_tpu=False, export_to_tpu=False)
    estimator.train(on_cores.train_input_fn, steps=1)
    with pytest.raises(ZeroDivisionError):
        estimator.evaluate(fails)
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})
    estimator.export_saved_model(str(tmp_path / "exports"), receiver_fn)
    assert seen == [("train", ["batch_size", "use_tpu"]), ("infer", ["use_tpu"])]


@pytest.mark.behaviour(387, 388)
def test_an_emulated_run_has_no_tpu_to_shut_down_compile_for_or_watch(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_TPU_GRACEFUL_SHUTDOWN_MODE", "no such mode")
    monkeypatch.setenv("TPU_SPLIT_COMPILE_AND_EXECUTE", "1")
    monkeypatch.setenv("TF_TPU_WATCHDOG_TIMEOUT", "1")
    estimator = on_cores.linear(tmp_path)
    estimator.train(on_cores.train_input_fn, steps=3)
    on_cores.assert_descended(estimator, 3)
