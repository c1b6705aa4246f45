"""Sessions that close at once: what waits, waits in a thread."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
import tensorflow as tf

from tfx_tpu_trainer.engine.sessions.closing import closed_aside
from tfx_tpu_trainer.engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec

v1 = tf.compat.v1


@pytest.fixture
def slow_close(monkeypatch):
    """Lets sessions close when the test says so."""
    close, may_close = v1.Session.close, threading.Event()

    def slowly(session):
        assert may_close.wait(30)
        close(session)

    monkeypatch.setattr(v1.Session, "close", slowly)
    yield may_close
    may_close.set()
    for thread in threading.enumerate():
        if thread.name == "session-close":
            thread.join(30)


def leave(*, master="", raises=None):
    """Opens a session, calls it and leaves it; returns the session."""
    with tf.Graph().as_default():
        one = tf.constant(1)
        session = v1.train.MonitoredSession()
        calls = PatientSession(session, StallWatch("Test", timeout_secs=None))
        with session, closed_aside(calls, master=master):
            assert calls.run(one) == 1
            left = calls.latest
            if raises is not None:
                raise raises
    return left


def test_a_session_that_waits_goes_on_closing_in_a_thread(slow_close):
    left = leave()
    assert not slow_close.is_set()
    # It has its own method again, for its end.
    assert "close" not in vars(left)
    slow_close.set()


def test_errors_come_through(slow_close):
    with pytest.raises(KeyError, match="mine"):
        leave(raises=KeyError("mine"))
    slow_close.set()


@pytest.mark.parametrize("options", [{"master": "grpc://host"}, {"raises": GeneratorExit()}])
def test_others_are_closed_as_ever(slow_close, options):
    timer = threading.Timer(0.5, slow_close.set)
    timer.start()
    with contextlib.suppress(GeneratorExit):
        leave(**options)
    assert slow_close.is_set()


def test_a_closed_session_runs_nothing_more():
    left = leave()
    with pytest.raises(RuntimeError, match="closed"):
        left.run(left.graph.get_operations()[0])


@pytest.mark.sweep
@pytest.mark.parametrize("tuned", [None, True])
def test_200_trainings_end_at_once(tuned, tmp_path):
    ends = [_seconds_to_end(tmp_path / str(i % 10), 30 + i % 150, tuned) for i in range(200)]
    # A sleep is one of seconds; that of a busy machine comes once or twice.
    assert sorted(ends)[-3] < 0.5


def _seconds_to_end(folder, steps, tuned):
    class LastStep(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            # As long as a step of a small model: the thread that tunes sleeps longer and longer.
            time.sleep(0.02)

        def end(self, session):
            self.at = time.monotonic()

    def input_fn():
        made = tf.data.Dataset.range(10**9).map(
            lambda x: tf.cast(x, tf.float32)[None], num_parallel_calls=tf.data.AUTOTUNE
        )
        options = tf.data.Options()
        if tuned:
            options.autotune.enabled = True
        return made.batch(8).map(lambda x: (x, 0 * x)).with_options(options)

    def model_fn(features, labels, mode):
        weight = v1.get_variable("weight", [1])
        loss = tf.reduce_mean((0 * features + weight - labels) ** 2)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    hook = LastStep()
    Estimator(model_fn, model_dir=str(folder)).train(input_fn, hooks=[hook], steps=steps)
    return time.monotonic() - hook.at
