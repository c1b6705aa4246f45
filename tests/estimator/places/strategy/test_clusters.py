"""Strategies over several processes, each one task of a TF_CONFIG cluster on this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import counting_model
from tests.estimator.places.strategy import counting_program, strategy_runs
from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.tpu import on_cores
from tests.free_ports import free_ports
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator.hooks import read_eval_metrics
from tfx_tpu_trainer.estimator.places.strategy.feed import (
    EagerThread,
    ProcessLostError,
    lost_process,
)
from tfx_tpu_trainer.estimator.schedule._tasks import worker_delay

v1 = tf.compat.v1


REPOSITORY = Path(__file__).parents[4]


SECONDS = 180


def _run(
    folder: Path, jobs: dict[str, int], *, waits_for: Any = None, **arguments: Any
) -> dict[str, dict[str, Any]]:
    """Runs the tasks to their end; gives what each of them saw.

    Args:
        folder: For logs and the model.
        jobs: Type of task -> how many.
        waits_for: Types of tasks whose end counts; the others are ended then. Defaults to all.
        **arguments: The program's.
    """
    ports = iter(free_ports(sum(jobs.values())))
    addresses = {kind: [next(ports) for _ in range(count)] for kind, count in jobs.items()}
    # MultiWorkerMirroredStrategy wants the evaluator's address there; others don't have it.
    outside = () if arguments["strategy"] == "multi_worker_mirrored" else ("evaluator",)
    cluster = {kind: tasks for kind, tasks in addresses.items() if kind not in outside}
    tasks = [(kind, index) for kind, count in jobs.items() for index in range(count)]
    text = json.dumps({"model_dir": str(folder / "model"), **arguments})
    with contextlib.ExitStack() as stack:
        processes = {}
        for kind, index in tasks:
            tf_config = {"cluster": cluster, "task": {"type": kind, "index": index}}
            log = stack.enter_context((folder / f"{kind}{index}.log").open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.estimator.places.strategy.cluster_program", text],
                cwd=REPOSITORY,
                env={**os.environ, "TF_CONFIG": json.dumps(tf_config)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_end, process)
            processes[kind, index] = process
        ends = time.monotonic() + SECONDS
        for (kind, index), process in processes.items():
            if waits_for is None or kind in waits_for:
                try:
                    code = process.wait(max(ends - time.monotonic(), 1))
                except subprocess.TimeoutExpired:
                    code = None
                logs = {path.name: path.read_text()[-3000:] for path in folder.glob("*.log")}
                assert code == 0, (kind, index, code, logs)
    saw: dict[str, dict[str, Any]] = {}
    for kind, index in tasks:
        lines = (folder / f"{kind}{index}.log").read_text().splitlines()
        if waits_for is None or kind in waits_for:
            saw[f"{kind}{index}"] = json.loads(next(x for x in lines[::-1] if x.startswith("{")))
    return saw


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def _trained(folder: Path) -> tfe.Estimator:
    return runs.make(folder / "model")


@pytest.mark.e2e
@pytest.mark.sweep
def test_two_workers_train_as_one_device_on_the_global_batch(tmp_path):
    saw = _run(tmp_path, {"worker": 2}, strategy="multi_worker_mirrored", max_steps=4)
    for index in range(2):
        said = saw[f"worker{index}"].pop("evaluate")
        assert "(2 replicas) has replicas in other processes" in said
        assert "Leave eval_distribute out" in said
        assert saw[f"worker{index}"] == {
            "task": f"worker{index}",
            "calls": 1,
            "pipelines": 2,
            "pipeline": index,
            "replicas": 2,
            "is_chief": index == 0,
        }
    on_cores.assert_descended(_trained(tmp_path), 4)
    # The first worker saves, at the chief's times, and nobody else does.
    assert on_cores.checkpoint_steps(tmp_path / "model") == [0, 2, 4]


@pytest.mark.sweep
def test_a_chief_a_worker_and_an_evaluator(tmp_path):
    jobs = {"chief": 1, "worker": 1, "evaluator": 1}
    saw = _run(tmp_path, jobs, strategy="multi_worker_mirrored", max_steps=4)
    assert [saw[name]["is_chief"] for name in ("chief0", "worker0")] == [True, False]
    assert [saw[name]["pipeline"] for name in ("chief0", "worker0")] == [0, 1]
    trained = _trained(tmp_path)
    on_cores.assert_descended(trained, 4)
    assert max(read_eval_metrics(trained.eval_dir())) == 4


@pytest.mark.sweep
def test_workers_stop_together_when_the_chief_asks_for_it(tmp_path):
    _run(tmp_path, {"worker": 2}, strategy="multi_worker_mirrored", max_steps=50, stop_at=3)
    assert _trained(tmp_path).get_variable_value("global_step") == 3
    on_cores.assert_descended(_trained(tmp_path), 3)


@pytest.mark.sweep
def test_workers_stop_together_when_one_of_them_has_no_more_input(tmp_path):
    _run(
        tmp_path,
        {"worker": 2},
        strategy="multi_worker_mirrored",
        max_steps=50,
        batches={"worker0": 9, "worker1": 3},
    )
    on_cores.assert_descended(_trained(tmp_path), 3)


@pytest.mark.sweep
def test_training_of_several_processes_goes_on_from_its_checkpoint(tmp_path):
    for max_steps in (2, 4):
        _run(tmp_path, {"worker": 2}, strategy="multi_worker_mirrored", max_steps=max_steps)
    assert on_cores.checkpoint_steps(tmp_path / "model") == [0, 2, 4]


@pytest.mark.sweep
def test_a_parameter_server_strategy_trains_with_ps_workers_and_evaluator(tmp_path):
    saw = _run(
        tmp_path,
        {"ps": 1, "worker": 2, "evaluator": 1},
        waits_for=("worker", "evaluator"),
        strategy="parameter_server",
        max_steps=3000,
        save=500,
    )
    assert [saw[f"worker{index}"]["pipeline"] for index in range(2)] == [0, 1]
    assert {saw[f"worker{index}"]["replicas"] for index in range(2)} == {1}
    assert [saw[f"worker{index}"]["is_chief"] for index in range(2)] == [True, False]
    trained = _trained(tmp_path)
    reached = int(trained.get_variable_value("global_step"))
    assert reached >= 3000
    np.testing.assert_allclose(trained.get_variable_value("linear/weights"), [1, 2, 3], atol=0.2)
    assert max(read_eval_metrics(trained.eval_dir())) == reached


CLUSTER = {"worker": ["localhost:1", "localhost:2"], "ps": ["localhost:3"]}


def _config(monkeypatch, kind: str, index: int, **options: Any) -> tfe.RunConfig:
    task = {"cluster": CLUSTER, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    return tfe.RunConfig(**options)


def test_the_first_worker_is_chief_where_there_is_a_strategy_and_no_chief(monkeypatch):
    make = v1.distribute.experimental.ParameterServerStrategy
    for index in range(2):
        config = _config(monkeypatch, "worker", index, train_distribute=_in_cluster(make, index))
        assert config.is_chief == (index == 0)
        assert (config.num_worker_replicas, config.num_ps_replicas) == (2, 1)
        assert config.global_id_in_cluster == index
        assert config.master == f"grpc://{CLUSTER['worker'][index]}"
        # The chief does not wait for the others.
        assert worker_delay(config) == (0 if index == 0 else 10)
    with pytest.raises(ValueError, match='must have one "chief" node'):
        _config(monkeypatch, "worker", 0)


def _in_cluster(make: Any, index: int) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(CLUSTER), task_type="worker", task_id=index
    )
    return make(resolver)


def test_a_strategy_that_makes_the_steps_needs_no_server_and_no_filters(monkeypatch):
    config = _config(monkeypatch, "worker", 1, train_distribute=runs.mirrored())
    assert (config.master, config.is_chief, config.session_config) == ("", False, None)
    assert worker_delay(config) == 0


def test_a_configuration_is_copied_with_the_same_strategies():
    strategy = runs.mirrored()
    config = tfe.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    changed = config.replace(tf_random_seed=5)
    assert changed.train_distribute is changed.eval_distribute is strategy
    assert config.tf_random_seed is None


LOST_CLUSTER = tf.train.ClusterSpec(
    {"chief": ["10.77.0.1:2222"], "worker": ["10.77.0.2:2222", "10.77.0.3:2222"]}
)


HEARTBEAT = (
    "Collective ops is aborted by: Error reported from /job:worker/task:1: Task "
    "/job:worker/replica:0/task:1 heartbeat timeout. This indicates that the remote task has "
    "failed, got preempted, or crashed unexpectedly."
)


CUT_OFF = (
    "Collective ops is aborted by: Deadline Exceeded\nAdditional GRPC error information from "
    "remote target /job:chief/replica:0/task:0 while calling /tensorflow.CoordinationService/Heartbeat:"
)


GONE = (
    "failed to connect to all addresses\nAdditional GRPC error information from remote target "
    "/job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:"
)


@pytest.mark.parametrize(
    ("error", "message", "named"),
    [
        pytest.param(
            tf.errors.UnavailableError, HEARTBEAT, "worker 1 (10.77.0.3:2222)", id="heartbeat"
        ),
        pytest.param(
            tf.errors.DeadlineExceededError, CUT_OFF, "chief 0 (10.77.0.1:2222)", id="cut off"
        ),
        pytest.param(tf.errors.UnavailableError, GONE, "worker 0 (10.77.0.2:2222)", id="gone"),
        pytest.param(
            tf.errors.AbortedError, HEARTBEAT.replace("worker", "ps"), "ps 1", id="no address"
        ),
    ],
)
def test_a_lost_process_is_named_in_one_line_that_says_how_to_go_on(error, message, named):
    said = lost_process(error(None, None, message), LOST_CLUSTER)
    assert said is not None
    assert said.startswith(f"{named} no longer answers")
    assert said.endswith("start all of them again, and they resume from the last checkpoint")
    assert "\n" not in said


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.OutOfRangeError(None, None, "End of sequence"),
        # An error of this process aborts its collective ops, too.
        tf.errors.InvalidArgumentError(None, None, f"nan; {HEARTBEAT}"),
        tf.errors.UnavailableError(None, None, "gs://bucket: 503 from /job:worker/task:1"),
        tf.errors.UnavailableError(None, None, "Collective ops is aborted by: no words"),
    ],
)
def test_other_errors_are_left_as_they_are(error):
    assert lost_process(error, LOST_CLUSTER) is None

    def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        EagerThread(LOST_CLUSTER).run(fail)
    assert raised.value is error


def test_a_strategys_call_raises_no_error_that_a_session_is_opened_again_for():
    def fail():
        raise tf.errors.UnavailableError(None, None, HEARTBEAT)

    with pytest.raises(ProcessLostError, match=r"worker 1 \(10\.77\.0\.3:2222\)") as raised:
        EagerThread(LOST_CLUSTER).run(fail)
    assert isinstance(raised.value.__cause__, tf.errors.UnavailableError)


STEPS = 33


def _count_rows(folder: Path, *runs: dict[str, Any]) -> list[list[int]]:
    """Runs clusters one after the other; returns the exit codes of their workers."""
    arguments = json.dumps([{"max_steps": STEPS, **run} for run in runs])
    command = [sys.executable, "-m", "tests.estimator.places.strategy.counting_program"]
    process = subprocess.Popen(
        [*command, str(folder), arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out = process.communicate(timeout=SECONDS)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return json.loads(out.splitlines()[-1])


def _logs(folder: Path, workers: int = 2) -> list[str]:
    """What the workers of the last run said."""
    return [(folder / f"{worker}.log").read_text() for worker in range(workers)]


def _counted(folder: Path) -> tfe.Estimator:
    return tfe.Estimator(counting_model.noisy_model_fn, str(folder / "model"))


def _in_one_process(folder: Path) -> tfe.Estimator:
    """The same steps by two replicas of one process, which draw what the workers draw."""

    def input_fn() -> tf.data.Dataset:
        parts = [counting_program.rows_of(worker) for worker in range(counting_program.WORKERS)]
        return tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(2).repeat())

    config = tfe.RunConfig(
        model_dir=str(folder / "expected"), train_distribute=strategy_runs.mirrored()
    )
    trained = tfe.Estimator(counting_model.noisy_model_fn, config=config)
    return trained.train(input_fn, max_steps=STEPS)


def _assert_rows_came_once(trained: tfe.Estimator) -> None:
    counts = trained.get_variable_value("counts")
    assert counts.sum() == STEPS * counting_model.BATCH
    # 33 steps of 2 rows are 5.5 epochs of the 12 rows that a worker has.
    assert set(counts) == {5, 6}


KILLED = [-signal.SIGKILL] * 2


@pytest.mark.e2e
def test_killed_workers_go_on_with_their_own_rows_and_end_with_the_same_model(tmp_path):
    assert _count_rows(tmp_path, {"die_at": 13}, {}) == [KILLED, [0, 0]], _logs(tmp_path)
    for host, log in enumerate(_logs(tmp_path)):
        assert log.count("The input resumes at its position of step 10") == 1, log
        assert f"input_position/host{host}-10" in log
    _assert_rows_came_once(_counted(tmp_path))
    counting_model.assert_equal(_counted(tmp_path), _in_one_process(tmp_path))


@pytest.mark.sweep
def test_a_chief_that_dies_before_its_checkpoint_takes_them_to_the_one_before(tmp_path):
    assert _count_rows(tmp_path, {"die_before_saving": 20}, {}) == [KILLED, [0, 0]], _logs(tmp_path)
    for log in _logs(tmp_path):
        assert log.count("The input resumes at its position of step 10") == 1, log
    counting_model.assert_equal(_counted(tmp_path), _in_one_process(tmp_path))


@pytest.mark.sweep
def test_a_signal_to_one_of_them_stops_all_at_the_same_step(tmp_path):
    assert _count_rows(tmp_path, {"stop_at": 13}) == [[143, 143]], _logs(tmp_path)
    for log in _logs(tmp_path):
        assert "Training was stopped by SIGTERM. Start it again to resume from" in log, log
    assert _counted(tmp_path).get_variable_value("global_step") == 13
    assert _count_rows(tmp_path, {}) == [[0, 0]], _logs(tmp_path)
    counting_model.assert_equal(_counted(tmp_path), _in_one_process(tmp_path))


@pytest.mark.sweep
def test_an_input_that_ends_is_read_to_its_end(tmp_path):
    runs = {"epochs": 3, "die_at": 13}, {"epochs": 3}, {"epochs": 3}
    assert _count_rows(tmp_path, *runs) == [KILLED, [0, 0], [0, 0]], _logs(tmp_path)
    assert set(_counted(tmp_path).get_variable_value("counts")) == {3}


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_starts_the_input_anew_and_says_so(tmp_path, workers):
    _count_rows(tmp_path, {"max_steps": 10}, {"max_steps": 20, "workers": workers})
    for host, log in enumerate(_logs(tmp_path, workers)):
        line = "number of hosts differ" if host < 2 else "step 10 has no input position"
        assert log.count(line) == 1, log
    assert _counted(tmp_path).get_variable_value("global_step") == 20
