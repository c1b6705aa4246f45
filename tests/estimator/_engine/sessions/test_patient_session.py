from __future__ import annotations

import socket

import pytest
import tensorflow as tf

from tests.estimator._engine.log_lines import log_lines
from tests.free_ports import free_ports
from tfx_tpu_trainer.estimator._engine.sessions.patient_session import PatientSession
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StallWatch

v1 = tf.compat.v1

UNWATCHED = StallWatch("Test", timeout_secs=None)


class _Loses(v1.train.SessionRunHook):
    """Loses the session at some of its calls."""

    def __init__(self, error: type[tf.errors.OpError], calls: set[int]) -> None:
        self.made = 0
        self.sessions = 0
        self._error = error
        self._calls = calls

    def after_create_session(self, session, coord):
        self.sessions += 1

    def before_run(self, run_context):
        self.made += 1
        if self.made in self._calls:
            raise self._error(None, None, f"lost at call {self.made}")


def _count_to(
    number: int, hook: _Loses, *, retries: int, watch: StallWatch = UNWATCHED
) -> list[int]:
    """Adds 1 in each of some session calls; gives what they found."""
    with tf.Graph().as_default():
        count = v1.get_variable("count", initializer=0, use_resource=True)
        more = count.assign_add(1)
        found = []
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            patient = PatientSession(session, watch, retries=retries)
            for _ in range(number):
                found.append(patient.run(more))
        return found


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
@pytest.mark.behaviour(381)
def test_a_lost_session_is_made_anew_and_the_loss_is_told(caplog, error):
    hook = _Loses(error, {3, 4, 7})
    with log_lines(caplog) as logged:
        # Calls 5 and 8 begin again with initial values: there is no checkpoint.
        assert _count_to(5, hook, retries=2) == [1, 2, 1, 2, 1]
    assert hook.sessions == 4
    said = [line for line in logged if line.startswith("The session was lost")]
    assert [line.split("attempt ")[1] for line in said] == ["1 of 2.", "2 of 2.", "1 of 2."]
    assert f"{error.__name__}: lost at call 3" in said[0]


@pytest.mark.parametrize("error", [tf.errors.AbortedError, tf.errors.UnavailableError])
@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.behaviour(382)
def test_what_is_lost_too_often_in_a_row_is_raised_as_it_is(error, retries):
    hook = _Loses(error, set(range(2, 100)))
    with pytest.raises(error, match=f"lost at call {retries + 2}"):
        _count_to(5, hook, retries=retries)
    assert hook.made == retries + 2


@pytest.mark.behaviour(381)
def test_other_errors_are_raised_at_once():
    hook = _Loses(tf.errors.InternalError, {2})
    with pytest.raises(tf.errors.InternalError, match="lost at call 2"):
        _count_to(5, hook, retries=9)
    assert hook.sessions == 1


_BROKEN = [
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
]


@pytest.mark.parametrize("error", _BROKEN)
def test_an_error_while_a_host_does_not_answer_is_a_loss_that_names_it(error):
    (address,) = free_ports(1)
    watch = StallWatch("Test", timeout_secs=None, hosts={"ps 0": address})
    assert _count_to(2, _Loses(error, {2}), retries=1, watch=watch) == [1, 1]
    with pytest.raises(
        tf.errors.UnavailableError,
        match=rf"no answer from ps 0 \({address}\): {error.__name__}: lost at call 2",
    ):
        _count_to(2, _Loses(error, {2}), retries=0, watch=watch)


def test_an_error_while_all_hosts_answer_is_raised_as_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        watch = StallWatch("Test", timeout_secs=None, hosts={"ps 0": address})
        with pytest.raises(tf.errors.InternalError, match="lost at call 2"):
            _count_to(2, _Loses(tf.errors.InternalError, {2}), retries=9, watch=watch)


def test_a_step_function_is_watched_too_and_the_end_is_seen():
    hook = _Loses(tf.errors.AbortedError, set())
    with tf.Graph().as_default():
        tf.constant(1)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            patient = PatientSession(session, UNWATCHED, retries=0)
            assert not patient.should_stop()

            def fails(step_context):
                raise tf.errors.AbortedError(None, None, "in the step function")

            with pytest.raises(tf.errors.AbortedError, match="in the step function"):
                patient.run_step_fn(fails)
            patient.run_step_fn(lambda step_context: step_context.request_stop())
            assert patient.should_stop()
