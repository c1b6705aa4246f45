"""A chief without its parameter servers, a worker without its chief: servers on loopback, in this process."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator._engine.log_lines import log_lines
from tests.free_ports import free_ports
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as estimators
from tfx_tpu_trainer._support.waiting import HostsMissingError
from tfx_tpu_trainer.estimator._engine.sessions import reconnecting
from tfx_tpu_trainer.estimator._engine.sessions.reconnecting import (
    ReconnectingCreator,
    ReconnectingSession,
    WorkerCreator,
)
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import EXIT_CODE, StallWatch
from tfx_tpu_trainer.estimator.schedule._tasks import start_server

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
            patient = ReconnectingSession(session, watch, retries=retries)
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
    watch = StallWatch("Test", timeout_secs=None, tasks={"ps 0": address})
    assert _count_to(2, _Loses(error, {2}), retries=1, watch=watch) == [1, 1]
    with pytest.raises(
        tf.errors.UnavailableError,
        match=rf"no answer from ps 0 \({address}\): {error.__name__}: lost at call 2",
    ):
        _count_to(2, _Loses(error, {2}), retries=0, watch=watch)


def test_an_error_while_all_hosts_answer_is_raised_as_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        watch = StallWatch("Test", timeout_secs=None, tasks={"ps 0": address})
        with pytest.raises(tf.errors.InternalError, match="lost at call 2"):
            _count_to(2, _Loses(tf.errors.InternalError, {2}), retries=9, watch=watch)


def test_a_step_function_is_watched_too_and_the_end_is_seen():
    hook = _Loses(tf.errors.AbortedError, set())
    with tf.Graph().as_default():
        tf.constant(1)
        with v1.train.MonitoredSession(hooks=[hook]) as session:
            patient = ReconnectingSession(session, UNWATCHED, retries=0)
            assert not patient.should_stop()

            def fails(step_context):
                raise tf.errors.AbortedError(None, None, "in the step function")

            with pytest.raises(tf.errors.AbortedError, match="in the step function"):
                patient.run_step_fn(fails)
            patient.run_step_fn(lambda step_context: step_context.request_stop())
            assert patient.should_stop()


def _configs(folder, **options):
    """A cluster of a chief, a parameter server and a worker: each task's configuration."""
    tasks = ("chief", "ps", "worker")
    cluster = {
        # By number, as the messages have it.
        task: [address.replace("localhost", "127.0.0.1")]
        for task, address in zip(tasks, free_ports(3), strict=True)
    }
    return {
        task: estimators.RunConfig(
            model_dir=str(folder),
            tf_config={"cluster": cluster, "task": {"type": task, "index": 0}},
            **options,
        )
        for task in tasks
    }


def _model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(features * weight - labels))
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return estimators.EstimatorSpec(mode, loss=loss, train_op=train_op)


def _input_fn():
    return tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.ones([4, 1]))).repeat()


def _train(config):
    server = start_server(config)
    estimators.Estimator(_model_fn, config=config).train(_input_fn, max_steps=3)
    del server


@row(
    "tf_config",
    "a chief, or a worker, whose parameter server never starts",
    "ps 0 (127.0.0.1:",
    "did not answer within 1 s: start what is missing, correct its address in TF_CONFIG, or wait longer "
    "with session_creation_timeout_secs",
)
@mostly_swept("task", ["chief", "worker"], kept=["chief"])
def test_who_needs_a_parameter_server_that_is_not_there_names_it(tmp_path, refused, task):
    configs = _configs(tmp_path, session_creation_timeout_secs=1)
    with refused(HostsMissingError):
        _train(configs[task])


def test_a_chief_goes_on_when_its_parameter_server_has_come(tmp_path):
    configs = _configs(tmp_path, session_creation_timeout_secs=60)
    servers = []
    late = threading.Timer(0.7, lambda: servers.append(start_server(configs["ps"])))
    late.start()
    _train(configs["chief"])
    late.join()
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-3")


@row(
    "tf_config",
    "a worker whose chief never starts",
    "Session was not ready after waiting 1 secs. The chief (127.0.0.1:",
    "which does not answer, has not initialized the variables: its log has the reason. Start it, or "
    "wait longer with session_creation_timeout_secs.",
)
def test_a_worker_without_a_chief_names_it(tmp_path, refused):
    configs = _configs(tmp_path, session_creation_timeout_secs=1)
    server = start_server(configs["ps"])
    with refused(tf.errors.DeadlineExceededError):
        _train(configs["worker"])
    del server


@row(
    "tf_config",
    "a `master` where nothing answers",
    "the master (127.0.0.1:1) did not answer within 1 s",
)
def test_a_master_that_is_not_there_is_named(tmp_path, refused):
    config = estimators.RunConfig(
        model_dir=str(tmp_path),
        session_creation_timeout_secs=1,
        tf_config={"session_master": "grpc://127.0.0.1:1"},
    )
    with refused(HostsMissingError):
        estimators.Estimator(_model_fn, config=config).train(_input_fn, max_steps=3)


@row(
    "tf_config",
    "a parameter server that does not come back, with `stall_timeout_secs`",
    "ps 0 (127.0.0.1:",
    "did not answer within 1 s: start what is missing, correct its address in TF_CONFIG, or wait longer "
    "with stall_timeout_secs",
)
def test_a_host_that_was_lost_may_be_away_as_long_as_a_step_may_take(tmp_path, refused):
    config = _configs(tmp_path, session_creation_timeout_secs=3600, stall_timeout_secs=1)["chief"]
    port = int(config.cluster_spec.task_address("ps", 0).rpartition(":")[2])
    patient = ReconnectingCreator(_Lost(0), settings=config, master=config.master)
    with tf.Graph().as_default(), socket.create_server(("127.0.0.1", port)):
        patient.create_session().close()
    with tf.Graph().as_default(), refused(HostsMissingError):
        patient.create_session()


def test_a_worker_that_is_there_before_the_chief_asks_again_within_a_short_limit():
    """The original asks again after 30 s, and gives up at once where less than that is left."""
    server = v1.train.Server.create_local_server()
    with tf.Graph().as_default() as graph:
        weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())
        initialize = weight.initializer

        def begin_as_chief():
            with v1.Session(server.target, graph=graph) as session:
                session.run(initialize)

        late = threading.Timer(0.5, begin_as_chief)
        late.start()
        creator = WorkerCreator(
            scaffold=v1.train.Scaffold(), master=server.target, config=None, max_wait_secs=20
        )
        with creator.create_session() as session:
            assert session.run(weight) == 1
    late.join()


def test_a_worker_that_waits_for_long_says_once_which_variables_are_missing(monkeypatch, caplog):
    monkeypatch.setattr(reconnecting, "FIRST_NOTICE_SECONDS", 0.5)
    server = v1.train.Server.create_local_server()
    with tf.Graph().as_default(), log_lines(caplog) as lines:
        v1.get_variable("of_the_chief", [], initializer=v1.ones_initializer())
        creator = WorkerCreator(
            scaffold=v1.train.Scaffold(), master=server.target, config=None, max_wait_secs=2
        )
        with pytest.raises(tf.errors.DeadlineExceededError, match="not ready after waiting 2 secs"):
            creator.create_session()
    [line] = [line for line in lines if "Waiting for model to be ready" in line]
    assert "of_the_chief" in line


_CHIEF = """
import json, sys
from tests.estimator._engine.sessions import test_reconnecting as cluster
from tfx_tpu_trainer import estimator as estimators

cluster._train(
    estimators.RunConfig(
        model_dir=sys.argv[1], session_creation_timeout_secs=2, tf_config=json.loads(sys.argv[2])
    )
)
"""


@pytest.mark.sweep
@row(
    "tf_config",
    "a chief whose parameter server goes away while its session opens",
    "HostsMissingError: Opening a session waits for ps 0 (127.0.0.1:",
    "(session_creation_timeout_secs=2). Start what is missing or repair the network, then restart this: it resumes "
    "from its last checkpoint. The call can't be cancelled: the process ends with exit code 75.",
)
def test_a_host_that_goes_away_while_a_session_opens_is_named(tmp_path, refused):
    """As behind a link that is down: TensorFlow itself waits for it forever."""
    config = _configs(tmp_path)["chief"]
    cluster = config.cluster_spec.as_dict()
    address = ("127.0.0.1", int(cluster["ps"][0].rpartition(":")[2]))
    task = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    # It takes the first connections, with which it does nothing, and no more.
    with socket.create_server(address, backlog=0):
        ended = subprocess.run(
            [sys.executable, "-c", _CHIEF, str(tmp_path), json.dumps(task)],
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == EXIT_CODE
    refused.output(ended)


class _Lost(v1.train.SessionCreator):
    """Loses its first sessions."""

    def __init__(self, times):
        self.left = times

    def create_session(self):
        if self.left:
            self.left -= 1
            raise tf.errors.UnavailableError(None, None, "the store is away")
        return v1.Session()


def _open(creator, tmp_path, seconds):
    config = estimators.RunConfig(model_dir=str(tmp_path), session_creation_timeout_secs=seconds)
    with tf.Graph().as_default():
        zero = tf.constant(0)
        patient = ReconnectingCreator(creator, settings=config, master="")
        with v1.train.MonitoredSession(session_creator=patient) as session:
            return session.run(zero)


def test_a_session_that_is_lost_while_it_opens_is_tried_again_and_the_loss_is_told(
    tmp_path, caplog
):
    with log_lines(caplog) as logged:
        assert _open(_Lost(2), tmp_path, 60) == 0
    said = [line for line in logged if line.startswith("A session was lost while opening")]
    assert len(said) == 1
    assert "UnavailableError: the store is away" in said[0]


def test_a_session_that_never_opens_is_given_up(tmp_path):
    started = time.monotonic()
    with pytest.raises(
        RuntimeError, match=r"no session could be opened for 1 s .*the store is away"
    ):
        _open(_Lost(10**9), tmp_path, 1)
    assert time.monotonic() - started < 30
