"""Session calls that do not come back, in real sessions."""

import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import REPOSITORY
from tests.estimator import counting_model, stalled_training
from tests.estimator._engine.log_lines import log_lines
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import ReconnectingSession
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import (
    EXIT_CODE,
    StalledError,
    StallWatch,
    ended_without_tasks,
)

v1 = tf.compat.v1


def _stuck():
    """An op that waits forever, which TensorFlow can cancel."""
    return tf.queue.FIFOQueue(1, [tf.float32], shapes=[()]).dequeue()


def _sleeping(seconds):
    """An op that TensorFlow can't cancel."""
    return tf.numpy_function(lambda: time.sleep(seconds) or np.float32(0), [], tf.float32)


def _counting(steps, seconds):
    """A loop of steps, and what counts them."""
    count = v1.get_variable("count", initializer=0, use_resource=True)

    def body(number):
        with tf.control_dependencies([_sleeping(seconds)]):
            added = count.assign_add(1, read_value=False)
        with tf.control_dependencies([added]):
            return number + 1

    def loop():
        return tf.while_loop(lambda number: number < steps, body, [0], parallel_iterations=1)

    return tf.function(loop, autograph=False)()[0], count


def _run(fetches, watch, calls=1):
    with v1.train.MonitoredSession() as session, watch:
        patient = ReconnectingSession(session, watch)
        return [patient.run(fetches) for _ in range(calls)]


def test_a_stalled_call_is_cancelled_and_all_stacks_are_logged(caplog):
    watch = StallWatch("Training", timeout_secs=0.3)
    with tf.Graph().as_default(), log_lines(caplog) as logged:
        fetches = _stuck()
        waiting = threading.Event()
        threading.Thread(target=waiting.wait, name="another thread").start()
        with pytest.raises(
            StalledError,
            match=r"Training has finished no step for \d+ s \(stall_timeout_secs=0.3\)",
        ) as raised:
            _run(fetches, watch)
        waiting.set()
    assert isinstance(raised.value.__cause__, tf.errors.OpError)
    assert len(str(raised.value).splitlines()) == 1
    stacks = "\n".join(logged)
    assert "Thread 'MainThread'" in stacks and "in test_a_stalled_call_is_cancelled" in stacks
    assert "Thread 'another thread'" in stacks


def test_hosts_that_do_not_answer_are_named(caplog):
    with socket.socket() as listening, socket.socket() as closed:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        closed.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (listening, closed)]
        watch = StallWatch(
            "Training",
            timeout_secs=0.6,
            tasks={"ps 0": addresses[0], "ps 1": addresses[1]},
            first_notice_secs=0.2,
        )
        with (
            tf.Graph().as_default(),
            log_lines(caplog) as logged,
            pytest.raises(StalledError) as raised,
        ):
            _run(_stuck(), watch)
    silence = f"no answer from ps 1 ({addresses[1]})"
    said = next(line for line in logged if line.startswith("Training has finished no step"))
    assert said.startswith(
        f"Training has finished no step for 0 s: {silence}. The time limit is stall_timeout_secs"
    )
    assert f"stall_timeout_secs=0.6): {silence}. Start what is missing" in str(raised.value)
    assert "ps 0" not in str(raised.value)


def test_what_cant_be_cancelled_ends_the_process(caplog):
    ended = []
    watch = StallWatch("Training", timeout_secs=0.2, close_secs=0.1, end_process=ended.append)
    with tf.Graph().as_default(), log_lines(caplog) as logged, pytest.raises(StalledError):
        _run(_sleeping(1), watch)
    assert ended == [EXIT_CODE] == [os.EX_TEMPFAIL]
    # The last line of the log is what a runner shows.
    assert logged[-1].startswith("StalledError: Training has finished no step")
    assert logged[-1].endswith("The call can't be cancelled: the process ends with exit code 75.")


def test_a_process_ends_whose_hosts_stay_away_while_a_call_waits_for_them(caplog):
    codes = []
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as away:
        away.bind(("127.0.0.1", 0))
        hosts = {
            name: f"127.0.0.1:{each.getsockname()[1]}"
            for name, each in (("ps 0", there), ("ps 1", away))
        }
        options = {"seconds": 0.4, "setting": "stall_timeout_secs", "end_process": codes.append}
        with log_lines(caplog) as logged:
            with ended_without_tasks("Opening", {"ps 0": hosts["ps 0"]}, **options):
                time.sleep(1)
            with ended_without_tasks("Opening", hosts, **options):
                deadline = time.monotonic() + 60
                while not codes and time.monotonic() < deadline:
                    time.sleep(0.05)
    assert codes == [EXIT_CODE]
    assert logged[-1].startswith(
        f"HostsMissingError: Opening waits for ps 1 ({hosts['ps 1']}), which has not answered for"
    )
    assert "(stall_timeout_secs=0.4). Start what is missing" in logged[-1]


def test_a_call_of_many_steps_is_no_stall_while_it_makes_them():
    with tf.Graph().as_default():
        loop, count = _counting(15, 0.1)
        watch = StallWatch("Training", timeout_secs=1, steps_done=count)
        assert _run(loop, watch) == [15]
    with tf.Graph().as_default():
        loop, _ = _counting(15, 0.1)
        with pytest.raises(StalledError):
            _run(loop, StallWatch("Training", timeout_secs=1, end_process=lambda code: None))


def test_calls_that_come_back_are_no_stall():
    with tf.Graph().as_default():
        watch = StallWatch("Training", timeout_secs=1)
        assert len(_run(_sleeping(0.1), watch, calls=14)) == 14


def test_an_evaluation_inside_of_a_training_call_is_no_stall_while_it_goes_on():
    class Evaluating(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            with tf.Graph().as_default():
                inner = StallWatch("Evaluation", timeout_secs=1)
                _run(_sleeping(0.1), inner, calls=14)

    with tf.Graph().as_default():
        zero = tf.constant(0)
        watch = StallWatch("Training", timeout_secs=1)
        with v1.train.MonitoredSession(hooks=[Evaluating()]) as session, watch:
            assert ReconnectingSession(session, watch).run(zero) == 0


def test_an_evaluation_that_stalls_inside_of_a_training_call_is_the_one_that_ends():
    class Evaluating(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            with tf.Graph().as_default():
                _run(_stuck(), StallWatch("Evaluation", timeout_secs=0.3, unit="batch"))

    with tf.Graph().as_default():
        zero = tf.constant(0)
        watch = StallWatch("Training", timeout_secs=0.3)
        with (
            v1.train.MonitoredSession(hooks=[Evaluating()]) as session,
            watch,
            pytest.raises(StalledError, match="Evaluation has finished no batch"),
        ):
            ReconnectingSession(session, watch).run(zero)


@pytest.mark.parametrize(
    ("timeout", "ends"),
    [
        (None, "This has no time limit: stall_timeout_secs is not set."),
        (60, "The time limit is stall_timeout_secs=60."),
    ],
)
def test_a_long_call_is_named_again_and_again(caplog, timeout, ends):
    watch = StallWatch("Training", timeout_secs=timeout, first_notice_secs=0.1, notice_secs=0.2)
    with tf.Graph().as_default(), log_lines(caplog) as logged:
        _run(_sleeping(0.45), watch)
    said = [line for line in logged if "has finished no step" in line]
    assert len(said) >= 2
    assert all(line.endswith(ends) for line in said)


def test_a_call_as_long_as_those_before_it_is_worth_no_line(caplog):
    watch = StallWatch("Training", timeout_secs=None, first_notice_secs=0.2, notice_secs=0.1)
    with tf.Graph().as_default(), log_lines(caplog):
        seconds = v1.placeholder(tf.float32, ())
        sleep = tf.numpy_function(lambda x: time.sleep(float(x)) or x, [seconds], tf.float32)
        with v1.train.MonitoredSession() as session, watch:
            patient = ReconnectingSession(session, watch)
            for each in (0.15, 0.35, 1.5):
                patient.run(sleep, {seconds: each})
                assert any("has finished no" in line for line in caplog.messages) == (each == 1.5)


def test_its_thread_ends_with_it():
    before = threading.active_count()
    with tf.Graph().as_default():
        zero = tf.constant(0)
        _run(zero, StallWatch("Training", timeout_secs=100, first_notice_secs=0.1))
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


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
