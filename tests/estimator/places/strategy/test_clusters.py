"""Strategies over several processes, each one task of a TF_CONFIG cluster on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.tpu import on_cores
from tests.free_ports import free_ports
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator.hooks import read_eval_metrics
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
