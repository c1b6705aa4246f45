"""Sessions that close at once: what waits, waits in a thread."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tests.free_ports import free_ports
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig
from tfx_tpu_trainer.estimator._engine.sessions import closing
from tfx_tpu_trainer.estimator._engine.sessions.closing import closed_aside
from tfx_tpu_trainer.estimator._engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch
from tfx_tpu_trainer.estimator.schedule._tasks import start_server

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
        with closed_aside(session, calls, master=master):
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


def test_a_session_of_several_hosts_that_failed_is_not_waited_for_long(
    slow_close, monkeypatch, caplog
):
    monkeypatch.setattr(closing, "_HOSTS_PATIENCE_SECONDS", 0.2)
    with log_lines(caplog) as logged, pytest.raises(KeyError, match="mine"):
        leave(master="grpc://host", raises=KeyError("mine"))
    assert not slow_close.is_set()
    assert [line for line in logged if "not closed within 0.2 s" in line and "'mine'" in line]


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


class _OpensOnce(v1.train.ChiefSessionCreator):
    opened = None

    def create_session(self):
        if self.opened is not None:
            raise KeyError("the host does not come back")
        self.opened = super().create_session()
        return self.opened


def _lose(step_context):
    raise tf.errors.UnavailableError(None, None, "the host is gone")


@pytest.mark.parametrize("master", ["", "grpc://host"])
def test_a_session_that_was_lost_for_good_has_its_own_method_again(master):
    """With the other one, which starts a thread, the interpreter was seen to wait forever for the session's end."""
    creator = _OpensOnce()
    with tf.Graph().as_default():
        tf.constant(1)
        session = v1.train.MonitoredSession(creator)
        calls = PatientSession(session, StallWatch("Test", timeout_secs=None))
        with (
            pytest.raises(KeyError, match="does not come back"),
            closed_aside(session, calls, master=master),
        ):
            calls.run_step_fn(_lose)
    assert calls.latest is creator.opened
    assert "close" not in vars(creator.opened)


@pytest.mark.sweep
@pytest.mark.parametrize("tuned", [None, True])
def test_200_trainings_end_at_once(tuned, tmp_path):
    ends = [_seconds_to_end(tmp_path / str(i % 10), 30 + i % 150, tuned) for i in range(200)]
    # A sleep is one of seconds; that of a busy machine comes once or twice.
    assert sorted(ends)[-3] < 0.5


def _model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [1])
    loss = tf.reduce_mean((0 * features + weight - labels) ** 2)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


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

    hook = LastStep()
    Estimator(_model_fn, model_dir=str(folder)).train(input_fn, hooks=[hook], steps=steps)
    return time.monotonic() - hook.at


_PARAMETER_SERVER = """
import json, sys
from tfx_tpu_trainer.estimator import RunConfig
from tfx_tpu_trainer.estimator.schedule._tasks import start_server
start_server(RunConfig(tf_config=json.loads(sys.argv[1]))).join()
"""


class _LosesItsHost(v1.train.SessionRunHook):
    """Ends a process, makes a call that fails for want of it, and raises an error of its own."""

    def __init__(self, process):
        self._process = process

    def after_run(self, run_context, run_values):
        self._process.kill()
        self._process.wait()
        try:
            run_context.session.run(v1.train.get_global_step())
        except tf.errors.OpError as error:
            raise KeyError("mine") from error


@pytest.mark.sweep
def test_the_error_of_a_training_whose_parameter_server_is_gone_is_seen(tmp_path):
    def input_fn():
        return tf.data.Dataset.from_tensors((tf.ones([1]), tf.zeros([1]))).repeat()

    cluster = {
        task: [address] for task, address in zip(("chief", "ps"), free_ports(2), strict=True)
    }
    of_ps, of_chief = (
        {"cluster": cluster, "task": {"type": task, "index": 0}} for task in ("ps", "chief")
    )
    config = RunConfig(model_dir=str(tmp_path), tf_config=of_chief)
    with subprocess.Popen(
        [sys.executable, "-c", _PARAMETER_SERVER, json.dumps(of_ps)],
        cwd=Path(__file__).parents[4],
    ) as process:
        try:
            server = start_server(config)
            with pytest.raises(KeyError, match="mine"):
                Estimator(_model_fn, config=config).train(input_fn, hooks=[_LosesItsHost(process)])
            del server
        finally:
            process.kill()
