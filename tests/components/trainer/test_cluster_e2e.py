"""A TpuTrainer on several hosts: processes on loopback, each under the entry point of Kubeflow V2."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests import tfx_testdata
from tests.checkpoint_files import last_whole_step
from tests.components.trainer.execution import MODULE
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.trainer.workers import STATUS_FILE
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints

pytestmark = pytest.mark.sweep

ROOT = Path(__file__).parents[3]
STEPS = 4000
SECONDS = 400


class Hosts:
    """Processes that run one execution together."""

    def __init__(self, folder: Path, **tasks: int) -> None:
        self.folder = folder
        self._cluster = _addresses({kind: n for kind, n in tasks.items() if kind != "evaluator"})
        self.processes: dict[str, subprocess.Popen] = {}
        self.model_run = folder / "model_run"
        self.checkpoints = folder / "checkpoints"

    def start(self, kind: str, index: int = 0) -> None:
        """Starts a host. What it is told to write is its own, but for model_run."""
        name = f"{kind}{index}"
        command = [sys.executable, "-m"]
        command += ["tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"]
        command += ["--executor_class_path"]
        command += ["tfx_tpu_trainer.components.trainer.trainer_executor.TpuTrainerExecutor"]
        command += [
            "--json_serialized_inputs_spec_args",
            json.dumps(_input_spec(_properties(self))),
        ]
        command += ["--json_serialized_invocation_args", json.dumps(_invocation(self, name))]
        task = {"cluster": self._cluster, "task": {"type": kind, "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task), "PYTHONPATH": str(ROOT)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str) -> int:
        return self.processes[name].wait(SECONDS)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def _addresses(tasks: dict[str, int]) -> dict[str, list[str]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(sum(tasks.values()))]
        for each in sockets:
            each.bind(("localhost", 0))
        ports = iter([f"localhost:{each.getsockname()[1]}" for each in sockets])
        return {kind: [next(ports) for _ in range(count)] for kind, count in tasks.items()}


def _properties(hosts: Hosts) -> dict:
    return {
        "module": MODULE,
        "node": "TpuTrainer",
        "label_key": tfx_testdata.LABEL,
        "train_args": json.dumps({"num_steps": STEPS}),
        "eval_args": "{}",
        "train_batch_size": 64,
        "save_checkpoints_steps": 200,
        "log_step_count_steps": 200,
        "export_to_tpu": 0,
        "serving_check": "off",
        "checkpoint_root": str(hosts.checkpoints),
    }


def _input_spec(properties: dict) -> dict:
    kinds = {int: "NUMBER_INTEGER", str: "STRING"}
    return {"parameters": {key: {"parameterType": kinds[type(v)]} for key, v in properties.items()}}


def _invocation(hosts: Hosts, name: str) -> dict:
    def artifact(title: str, uri: str, **metadata: str) -> dict:
        described = {"uri": uri, "type": {"schemaTitle": f"tfx.{title}"}, "metadata": metadata}
        return {"artifacts": [{"name": f"artifacts/{uri}", **described}]}

    own, graph = hosts.folder / name, tfx_testdata.TRANSFORM_GRAPH
    return {
        "inputs": {
            "artifacts": {
                "examples": artifact(
                    "Examples", tfx_testdata.TRANSFORMED_EXAMPLES, split_names='["train", "eval"]'
                ),
                "transform_graph": artifact("TransformGraph", graph),
                "schema": artifact("Schema", os.path.join(graph, "metadata")),
            },
            "parameterValues": _properties(hosts),
        },
        "outputs": {
            "artifacts": {
                "model": artifact("Model", str(own / "model")),
                "model_run": artifact("ModelRun", str(hosts.model_run)),
                "evaluation": artifact("ModelEvaluation", str(own / "evaluation")),
            },
            "outputFile": str(own / "executor_output.json"),
        },
    }


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Four hosts that have trained a model together; the chief was killed and came back."""
    cluster = Hosts(tmp_path_factory.mktemp("cluster"), chief=1, worker=1, ps=1, evaluator=1)
    try:
        for kind in ("chief", "ps", "worker", "evaluator"):
            cluster.start(kind)
        ends = time.monotonic() + SECONDS
        while last_whole_step(cluster.checkpoints) < 400:
            assert time.monotonic() < ends, cluster.log("chief0")[-3000:]
            assert cluster.processes["chief0"].poll() is None, cluster.log("chief0")[-3000:]
            time.sleep(0.05)
        cluster.processes["chief0"].kill()
        cluster.wait("chief0")
        cluster.killed_at = last_whole_step(cluster.checkpoints)
        cluster.start("chief")
        for name in cluster.processes:
            assert cluster.wait(name) == 0, f"{name}: {cluster.log(name)[-3000:]}"
        yield cluster
    finally:
        cluster.end()


def test_the_chief_alone_writes(hosts):
    chief = hosts.folder / "chief0"
    assert sorted(os.listdir(chief)) == ["evaluation", "executor_output.json", "model"]
    assert sorted(os.listdir(chief / "model")) == [
        "Format-Serving",
        "eval_metrics.json",
        "serving_config",
    ]
    for name in ("ps0", "worker0", "evaluator0"):
        assert not (hosts.folder / name).exists()
        assert "only the chief writes artifacts" in hosts.log(name)
    written = json.loads((chief / "executor_output.json").read_text())
    (model,) = written["artifacts"]["model"]["artifacts"]
    assert model["metadata"]["global_step"] >= STEPS


def test_the_model_is_trained_by_both(hosts):
    assert read_eval_metrics(str(hosts.folder / "chief0" / "model")).global_step >= STEPS
    assert "Reads part 1 of 2 of the training input." in hosts.log("chief0")
    assert "Reads part 2 of 2 of the training input." in hosts.log("worker0")
    assert "Loss for final step" in hosts.log("worker0")
    # The whole training of the chief was shorter than its steps: others were the worker's.
    assert checkpoints.global_step_of(str(hosts.model_run)) >= STEPS


def test_the_chief_came_back_where_it_was(hosts):
    # A checkpoint that was whole when its writer died counts, even if nothing names it yet.
    (resumed,) = re.findall(r"Resuming from the checkpoint of step (\d+)", hosts.log("chief0"))
    assert hosts.killed_at <= int(resumed) < STEPS
    assert not list(hosts.checkpoints.rglob("*.index"))
    assert json.loads((hosts.model_run / STATUS_FILE).read_text())["state"] == "succeeded"


def test_the_evaluator_has_watched(hosts):
    steps = {
        event.step
        for path in (hosts.model_run / "eval").glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if any(value.tag == "loss" for value in event.summary.value)
    }
    assert len(steps) >= 2
