"""Tests trials on emulated cores, under a strategy, and in several processes."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys

import pytest
from tfx.extensions.google_cloud_ai_platform.tuner.executor import _WorkerExecutor

from tests.components.trainer.execution import Execution
from tests.components.tuning.tuner_execution import TunerExecution
from tests.free_ports import free_ports
from tfx_tpu_trainer.components.evaluation import read_eval_metrics

CORES = {"use_tpu": True, "master": "emulated", "num_shards": 4, "iterations_per_loop": 3}


def _one_trial(folder, tuner_fn="tests.components.tuning.small_search.tuner_fn", **settings):
    execution = TunerExecution.of(
        folder, tuner_fn, steps=6, oracle="random", max_trials=1, evaluations=1, **settings
    )
    execution.run()
    return execution.results[0]


@pytest.mark.matrix
def test_a_trial_on_cores_trains_as_the_trainer_does_on_them(tmp_path):
    (tmp_path / "search").mkdir()
    result = _one_trial(tmp_path, trainer=CORES)
    values = {name: result[name] for name in ("learning_rate", "width")}
    trainer = Execution.of_trainer(
        tmp_path / "trainer",
        steps=6,
        params=json.dumps(values),
        eval_args=json.dumps({"num_steps": 4}),
        export_to_tpu=0,
        tf_random_seed=3,
        **{**CORES, "use_tpu": 1},
    )
    trainer.run()
    assert read_eval_metrics(trainer.model.uri).overall["accuracy"] == result["score"]


@pytest.mark.sweep
def test_a_trial_under_a_strategy_ends_near_the_one_on_the_host(tmp_path):
    results = {}
    for name in ("lowest_loss", "mirrored"):
        (tmp_path / name).mkdir()
        results[name] = _one_trial(
            tmp_path / name, f"tests.components.tuning.small_search.{name}_tuner_fn"
        )
    host, mirrored = results.values()
    assert mirrored["learning_rate"] == host["learning_rate"]
    # The strategy's graph has other ops, from whose number TensorFlow derives the seeds of shuffle and initial values.
    assert mirrored["score"] == pytest.approx(host["score"], rel=1e-2)


@pytest.mark.sweep
def test_several_processes_share_a_search_as_on_vertex(tmp_path):
    """TFX's executor of a CustomJob, in two processes: the first one has the oracle, in a process of its own."""
    (address,) = free_ports(1)
    cluster = {"workerpool0": [address], "workerpool1": ["localhost:1"]}
    processes = []
    for pool in cluster:
        spec = {"cluster": cluster, "task": {"type": pool, "index": 0}}
        command = [
            sys.executable,
            "-m",
            "tests.components.tuning.test_places",
            str(tmp_path),
            pool,
        ]
        with open(tmp_path / f"{pool}.log", "w") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "CLUSTER_SPEC": json.dumps(spec)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = {pool: (tmp_path / f"{pool}.log").read_text() for pool in cluster}
    assert codes == [0, 0], "\n".join(text[-3000:] for text in logs.values())
    execution = TunerExecution.of(tmp_path)
    trials = execution.trials()
    assert len(trials) == 6
    assert sorted({trial["status"] for trial in trials.values()}) == ["COMPLETED", "FAILED"]
    ran = {pool: {n for n in trials if f"Trial {n} begins" in text} for pool, text in logs.items()}
    assert set.union(*ran.values()) == set(trials) and not set.intersection(*ran.values())
    assert all(ran.values())
    rates = {name: t["hyperparameters"]["values"]["rate"] for name, t in trials.items()}
    assert execution.best["learning_rate"] == pytest.approx(rates[execution.results[0]["trial_id"]])
    assert (execution.project / "results.txt").exists()


def main() -> None:
    # absl has given the root logger its handler by now, which basicConfig would keep without `force`.
    logging.basicConfig(level=logging.INFO, force=True)
    folder, pool = pathlib.Path(sys.argv[1]), sys.argv[2]
    execution = TunerExecution.of(
        folder,
        "tests.components.tuning.small_search.cliff_tuner_fn",
        steps=6,
        oracle="random",
        max_trials=6,
        evaluations=2,
    )
    execution.run(_WorkerExecutor, inputs=folder / pool)


if __name__ == "__main__":
    main()
