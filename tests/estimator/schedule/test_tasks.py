import contextlib
import functools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import bad_input
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.schedule import plain
from tests.estimator.schedule.plain import Recorder
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig
from tfx_tpu_trainer.estimator._calls import call_graph
from tfx_tpu_trainer.estimator.hooks import read_eval_metrics
from tfx_tpu_trainer.estimator.schedule._local import CheckpointEvaluator, EvaluationListener
from tfx_tpu_trainer.estimator.schedule._tasks import run_schedule, start_server, worker_delay

v1 = tf.compat.v1

REPOSITORY = Path(__file__).parents[3]
CLUSTER = {
    "chief": ["localhost:2220"],
    "worker": [f"localhost:{2221 + i}" for i in range(20)],
    "ps": ["localhost:2219"],
}


def _task(monkeypatch, kind: str, index: int = 0, cluster: Any = None) -> None:
    config = {"cluster": cluster or CLUSTER, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def _specs(max_steps: int = 4, **options: Any):
    return (
        tfe.TrainSpec(plain.train_input, max_steps=max_steps),
        tfe.EvalSpec(plain.eval_input, steps=None, **options),
    )


@pytest.mark.parametrize(
    ("kind", "index", "most", "seconds"),
    [
        ("worker", 0, None, 5),
        ("worker", 3, None, 20),
        ("worker", 19, None, 60),
        ("worker", 19, 7, 7),
        ("worker", 2, 0, 0),
        ("chief", 0, None, 0),
    ],
)
@pytest.mark.behaviour(412)
def test_workers_start_one_after_the_other(monkeypatch, kind, index, most, seconds):
    _task(monkeypatch, kind, index)
    assert worker_delay(tfe.RunConfig(experimental_max_worker_delay_secs=most)) == seconds


@pytest.mark.behaviour(411)
@bad_input.row(
    "tf_config",
    "a second evaluator",
    "only be one `evaluator` task",
    "Given task id 1 in TF_CONFIG; leave this task out",
)
def test_an_evaluator_beside_the_first_is_refused(monkeypatch, tmp_path, refused):
    _task(monkeypatch, "evaluator", 1)
    with refused(ValueError):
        tfe.train_and_evaluate(plain.make(tmp_path), *_specs())


@pytest.mark.parametrize(
    "task_type",
    [
        bad_input.case(
            "tf_config",
            "a task of type `local`",
            "`task.type` in TF_CONFIG cannot be `local`. Leaving `cluster` and `task` out",
            values="local",
        ),
        bad_input.case(
            "tf_config",
            "a task of type `trainer`, which the cluster has",
            "Task type trainer is not supported. Supported task types are [",
            "give one of them in TF_CONFIG",
            values="trainer",
        ),
    ],
)
@pytest.mark.behaviour(411)
def test_a_task_that_cannot_be_is_refused(monkeypatch, tmp_path, task_type, refused):
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"], task_type: ["localhost:3"]}
    _task(monkeypatch, task_type, cluster=cluster)
    with refused(ValueError):
        tfe.train_and_evaluate(plain.make(tmp_path), *_specs())


@bad_input.row(
    "tf_config",
    "a port that another process has",
    "The server of chief:0 can't listen at 'localhost:",
    "TF_CONFIG",
    "If another process uses the port, stop it, or give this task another port",
)
def test_a_port_in_use_is_named(monkeypatch, refused):
    with socket.create_server(("localhost", 0)) as other:
        cluster = {"chief": [f"localhost:{other.getsockname()[1]}"], "ps": ["localhost:2219"]}
        _task(monkeypatch, "chief", cluster=cluster)
        with refused(RuntimeError):
            start_server(tfe.RunConfig())


def test_a_cluster_of_one_needs_no_server(monkeypatch):
    _task(monkeypatch, "chief", cluster={"chief": ["localhost:1"]})
    assert start_server(tfe.RunConfig()) is None


def test_variables_of_a_cluster_are_on_its_ps(monkeypatch, tmp_path):
    _task(monkeypatch, "worker", 1)
    estimator = plain.make(tmp_path)
    with call_graph(estimator.config):
        linear_model.outputs_of({"x": tf.zeros([1, 3])})
        devices = {variable.device for variable in v1.trainable_variables()}
        other = tf.constant(1).device
    assert devices == {"/job:ps/task:0"}
    assert other == "/job:worker/task:1"


@pytest.mark.behaviour(413)
def test_the_evaluator_waits_for_checkpoints_until_the_last_step(monkeypatch, tmp_path, caplog):
    trainer = plain.make(tmp_path, save=2)
    _task(monkeypatch, "evaluator")
    evaluator = plain.make(tmp_path)
    monkeypatch.delenv("TF_CONFIG")
    recorder, waits = plain.Recorder(), []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        # Training goes on while the evaluator sleeps, but for its third pause.
        if len(waits) in (2, 4):
            trainer.train(plain.train_input, max_steps=2 * len(waits))

    train, evaluate = _specs(8, exporters=recorder, start_delay_secs=30, throttle_secs=20)
    with log_lines(caplog) as logged:
        assert run_schedule(evaluator, train, evaluate, sleep=sleep) is None
    # 30 s at first; then no checkpoint, step 4, nothing new, and step 8, which ends it.
    assert [call["eval_result"]["global_step"] for call in recorder.calls] == [4, 8]
    assert [call["is_the_final_export"] for call in recorder.calls] == [False, True]
    assert waits[0] == 30
    assert len(waits) == 4
    assert all(0 < seconds <= 20 for seconds in waits[1:])
    for says in ("not trained yet", "No new checkpoint ready", "Exiting evaluation, global_step=8"):
        assert any(says in line for line in logged), says


def test_the_checkpoint_that_an_evaluator_waits_for_is_in_words(tmp_path):
    estimator = plain.make(tmp_path, save=2)
    _, evaluate = _specs(2)
    evaluator = CheckpointEvaluator(estimator, evaluate, max_steps=2)
    assert evaluator.awaited() == f"a new checkpoint in {tmp_path}, the first one"
    estimator.train(plain.train_input, max_steps=2)
    assert evaluator.awaited() is None
    evaluator.evaluate_newest()
    assert evaluator.awaited() == f"a new checkpoint in {tmp_path}, after model.ckpt-2"


@pytest.mark.behaviour(413)
def test_an_evaluator_that_never_pauses_is_warned_of(monkeypatch, tmp_path, caplog):
    _task(monkeypatch, "evaluator")
    evaluator = plain.make(tmp_path)

    class Stop(EvaluationListener):
        asked = 0

        def before_eval(self):
            self.asked += 1
            return self.asked < 3

    train, evaluate = _specs(8, start_delay_secs=0, throttle_secs=0)
    with log_lines(caplog) as logged:
        run_schedule(evaluator, train, evaluate, listener=Stop())
    assert sum("throttle_secs is set as 0" in line for line in logged) == 2


class Cluster:
    """Processes on this machine, one for each task."""

    def __init__(self, folder: Path, *, workers: int, max_steps: int) -> None:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(2 + workers)]
            for each in sockets:
                each.bind(("localhost", 0))
            ports = [f"localhost:{each.getsockname()[1]}" for each in sockets]
        self._cluster = {"chief": ports[:1], "ps": ports[1:2], "worker": ports[2:]}
        self.model_dir = folder / "model"
        self._logs = folder
        self._max_steps = max_steps
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, kind: str, index: int = 0) -> None:
        name = f"{kind}{index}"
        task = {"cluster": self._cluster, "task": {"type": kind, "index": index}}
        with (self._logs / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.estimator.schedule.plain",
                    str(self.model_dir),
                    str(self._max_steps),
                ],
                cwd=REPOSITORY,
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def wait_for(self, name: str, seconds: float = 180) -> int:
        return self.processes[name].wait(seconds)

    def wait_until(self, condition, seconds: float = 120) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, {n: self.log(n)[-2000:] for n in self.processes}
            time.sleep(0.2)

    def wait_for_a_newer_checkpoint(self) -> None:
        newest = self._newest_step()
        self.wait_until(lambda: self._newest_step() > newest)

    def _newest_step(self) -> int:
        written = self.model_dir.glob("model.ckpt-*.index")
        return max((int(path.stem.rpartition("-")[2]) for path in written), default=-1)


@pytest.mark.matrix
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("workers", "max_steps", "killed"),
    [
        (1, 400, False),
        pytest.param(1, 2000, True, marks=pytest.mark.sweep),
        pytest.param(2, 6000, True, marks=pytest.mark.sweep),
    ],
)
@pytest.mark.behaviour(411)
def test_a_cluster_trains_evaluates_and_exports_once(tmp_path, workers, max_steps, killed):
    cluster = Cluster(tmp_path, workers=workers, max_steps=max_steps)
    last_worker = workers - 1
    try:
        for kind in ("ps", "chief", "evaluator"):
            cluster.start(kind)
        for index in range(workers):
            cluster.start("worker", index)
        index_of = lambda step: cluster.model_dir / f"model.ckpt-{step}.index"  # noqa: E731
        if killed:
            cluster.wait_for_a_newer_checkpoint()
            # Who is killed and comes back stops nobody else.
            cluster.kill("evaluator0")
            cluster.kill(f"worker{last_worker}")
            cluster.wait_for_a_newer_checkpoint()
            cluster.start("evaluator")
            cluster.start("worker", last_worker)
        for name in ("chief0", "worker0", "evaluator0"):
            assert cluster.wait_for(name) == 0, cluster.log(name)[-3000:]
        assert cluster.processes["ps0"].poll() is None
        estimator = plain.make(cluster.model_dir)
        reached = int(estimator.get_variable_value("global_step"))
        assert reached >= max_steps
        assert index_of(reached).exists()
        # Steps of several workers go past the last one; the model is trained to the end.
        np.testing.assert_allclose(
            estimator.get_variable_value("linear/weights"), [1, 2, 3], atol=0.2
        )
        assert len(os.listdir(cluster.model_dir / "export" / "final")) == 1
        assert max(read_eval_metrics(estimator.eval_dir())) == reached
    finally:
        cluster.end()


def _input_fn():
    return None


@pytest.mark.behaviour(401)
def test_a_train_spec_keeps_its_arguments():
    hook, listener = v1.train.SessionRunHook(), v1.train.CheckpointSaverListener()
    spec = tfe.TrainSpec(_input_fn, max_steps=7, hooks=[hook], saving_listeners=[listener])
    assert spec == (_input_fn, 7, (hook,), (listener,))
    assert tfe.TrainSpec(_input_fn) == (_input_fn, None, (), ())


@pytest.mark.parametrize(
    ("spec", "name", "value", "error"),
    [
        (tfe.TrainSpec, "max_steps", math.nan, ValueError),
        (tfe.TrainSpec, "max_steps", "9", TypeError),
        (tfe.EvalSpec, "steps", "9", TypeError),
        (tfe.EvalSpec, "throttle_secs", "9", TypeError),
    ],
)
@pytest.mark.behaviour(401, 402)
def test_numbers_of_a_spec_are_numbers(spec, name, value, error):
    """What the original refuses too is in words/cases/training.py."""
    with pytest.raises(error, match=f"{name} > 0, given: nan|{name} must be a number; got '9'"):
        spec(_input_fn, **{name: value})


@pytest.mark.behaviour(402)
def test_an_eval_spec_has_defaults():
    spec = tfe.EvalSpec(_input_fn)
    assert spec == (_input_fn, 100, None, (), (), 120, 600)
    exporter = Recorder()
    assert tfe.EvalSpec(_input_fn, steps=None, exporters=exporter).exporters == (exporter,)


@pytest.mark.behaviour(403)
def test_exporters_may_be_one_several_or_none():
    first, second = Recorder("a"), Recorder("b")
    for given, kept in [
        (None, ()),
        ([], ()),
        (first, (first,)),
        ([first, second], (first, second)),
    ]:
        assert tfe.EvalSpec(_input_fn, exporters=given).exporters == kept
    assert tfe.EvalSpec(_input_fn, exporters=iter([first])).exporters == (first,)


CHIEF_AND_WORKER = {"chief": ["h0:1"], "worker": ["h1:1"]}


class _Counts(v1.train.SessionRunHook):
    """Counts session calls."""

    def __init__(self) -> None:
        self.calls = 0

    def after_run(self, run_context, run_values):
        self.calls += 1


def _train_as(folder, monkeypatch, task: str, master: str, *, max_steps: int) -> tuple[int, int]:
    """Trains as a task of the cluster; gives the calls of a training hook and of a chief hook."""
    task_config = {
        "cluster": CHIEF_AND_WORKER,
        "task": {"type": task, "index": 0},
        "session_master": master,
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(task_config))
    every, chief = _Counts(), _Counts()

    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(tf.square(linear_model.outputs_of(features) - labels))
        optimizer = v1.train.GradientDescentOptimizer(linear_model.RATE)
        return EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, v1.train.get_global_step()),
            training_hooks=[every],
            training_chief_hooks=[chief],
        )

    # With its own session config there are no device filters of a cluster that is not there.
    config = RunConfig(model_dir=folder, session_config=v1.ConfigProto())
    assert config.is_chief is (task == "chief")
    input_fn = functools.partial(linear_model.input_fn, {"batch_size": 6}, epochs=10)
    Estimator(model_fn, config=config).train(input_fn, max_steps=max_steps)
    return every.calls, chief.calls


@pytest.mark.behaviour(263)
def test_chief_hooks_and_checkpoints_are_the_chiefs_only(tmp_path, monkeypatch):
    server = tf.distribute.Server.create_local_server()
    train = functools.partial(_train_as, monkeypatch=monkeypatch, master=server.target)
    assert train(tmp_path / "chief", task="chief", max_steps=3) == (3, 3)
    assert (tmp_path / "chief" / "model.ckpt-3.index").exists()
    # The worker finds the variables on the server, and continues with them.
    assert train(tmp_path / "worker", task="worker", max_steps=5) == (2, 0)
    assert not list(tmp_path.glob("worker/model.ckpt*"))
