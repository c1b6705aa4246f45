"""Tests a host's role, the chief's reports, and how other hosts react to them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tests import bad_input, tfx_testdata
from tests.checkpoint_files import last_whole_step
from tests.components.trainer.execution import MODULE
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.components.trainer import hosts as hosts_module
from tfx_tpu_trainer.components.trainer.hosts import (
    ALONE,
    STATUS_FILE,
    ChiefFailedError,
    ChiefStatus,
    ChiefWatch,
    Host,
    Role,
    read_host,
)
from tfx_tpu_trainer.estimator import RunConfig
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints


def _watch(folder, **seconds):
    return ChiefWatch(str(folder), **{"poll_secs": 0.01, **seconds})


def _status(folder, **seconds):
    return ChiefStatus(str(folder), **{"beat_secs": 0.02, **seconds})


def test_from_the_start_to_the_end(tmp_path):
    watch = _watch(tmp_path)
    assert watch.state() is None and watch.is_training()
    with _status(tmp_path).reported() as status:
        assert watch.state() == "training"
        status.finishing()
        assert watch.state() == "finishing" and not watch.is_training()
        time.sleep(0.1)
        assert watch.state() == "finishing"
    watch.wait_for_end()
    # One that starts late is not kept waiting.
    _watch(tmp_path).wait_for_end()


def test_what_a_host_waits_for_is_in_words(tmp_path):
    watch = _watch(tmp_path, quiet_secs=0.3, start_secs=7, silent_secs=5)
    path = tmp_path / STATUS_FILE
    assert watch.awaited() == f"the chief of this training to start, which writes {path}"
    with _status(tmp_path).reported() as status:
        watch.state()
        assert watch.awaited() is None
        status.finishing()
        watch.state()
        assert watch.awaited().endswith("to evaluate, export and write the artifacts")
        time.sleep(0.4)
        said = f"a sign of life of the chief in {path}; the last one is "
        assert watch.awaited().startswith(said)
    assert watch.bounds == (
        "This host ends 7 s after its start if no chief has started (start_timeout_secs), and 5 s "
        "after the chief's last sign of life."
    )


def test_a_failure_reaches_the_others_with_its_reason(tmp_path):
    watch = _watch(tmp_path)
    with pytest.raises(ArithmeticError), _status(tmp_path).reported():
        raise ArithmeticError("no luck")
    with pytest.raises(ChiefFailedError, match="ArithmeticError: no luck"):
        watch.wait_for_end()


def test_the_failure_of_an_earlier_attempt_is_not_this_ones(tmp_path):
    with pytest.raises(ArithmeticError), _status(tmp_path).reported():
        raise ArithmeticError
    watch = _watch(tmp_path)
    assert watch.state() is None
    with _status(tmp_path).reported():
        assert watch.state() == "training"


def test_the_last_word_of_an_attempt_that_was_replaced_is_not_this_ones(tmp_path):
    def old_attempt():
        with _status(tmp_path, beat_secs=100).reported():
            yield
            raise ArithmeticError("of the old attempt")

    old = old_attempt()
    next(old)
    watch = _watch(tmp_path)
    with _status(tmp_path, beat_secs=100).reported():
        assert watch.state() == "training"
        with pytest.raises(ArithmeticError):
            next(old)
        assert watch.state() == "training"
        # Nor where both have written at once.
        failed = {"state": "failed", "attempt": "old", "started": 1.0, "beat": 9}
        (tmp_path / STATUS_FILE).write_text(json.dumps(failed))
        assert watch.state() == "training"
    watch.wait_for_end()


def test_a_silent_chief_is_given_up(tmp_path):
    watch = _watch(tmp_path, silent_secs=0.3)
    (tmp_path / STATUS_FILE).write_text('{"state": "training", "beat": 1}')
    with pytest.raises(
        ChiefFailedError, match=r"no sign of life for 0 seconds.*from its last check"
    ):
        watch.wait_for_end()


def test_signs_of_life_keep_the_others_waiting(tmp_path):
    watch = _watch(tmp_path, silent_secs=0.3)
    with _status(tmp_path).reported():
        for _ in range(8):
            time.sleep(0.1)
            assert watch.state() == "training"


def test_a_chief_that_never_starts_is_given_up(tmp_path):
    watch = _watch(tmp_path, start_secs=0.1)
    with pytest.raises(ChiefFailedError, match="has not started"):
        watch.wait_for_end()


@mostly_swept(("state", "code"), [("succeeded", 0), ("failed", 1)], kept=[("failed", 1)])
def test_a_host_that_hangs_ends_with_the_chief(tmp_path, state, code):
    program = (
        # By its path: its package takes ten seconds to import.
        "import runpy, sys, time\n"
        "ChiefWatch = runpy.run_path(sys.argv[1])['ChiefWatch']\n"
        "watch = ChiefWatch(sys.argv[2], poll_secs=0.01)\n"
        "print('ready', flush=True)\n"
        "with watch.ending_this_process(grace_secs=0.1): time.sleep(100)\n"
    )
    command = [sys.executable, "-c", program, hosts_module.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        (tmp_path / STATUS_FILE).write_text(f'{{"state": "{state}"}}')
        assert process.wait(60) == code


def test_a_host_that_is_done_goes_on(tmp_path):
    before = threading.active_count()
    with _watch(tmp_path).ending_this_process(grace_secs=0):
        assert threading.active_count() == before + 1
    # Nothing is left that could end it later.
    assert threading.active_count() == before


CLUSTER = {
    "chief": ["localhost:1"],
    "worker": ["localhost:2", "localhost:3"],
    "ps": ["localhost:4", "localhost:5"],
}
CHIEF_ALONE = {"chief": ["localhost:1"]}


def _set(monkeypatch, kind, index=0, cluster=None):
    config = {"cluster": cluster or CLUSTER, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def _slice(monkeypatch, number, hosts="a,b,c"):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", hosts)
    monkeypatch.setenv("TPU_WORKER_ID", number)


def test_a_process_is_alone_by_default():
    assert read_host() == Host(Role.CHIEF, is_alone=True, in_cluster=False, reader=0, readers=1)


@pytest.mark.parametrize(
    ("kind", "index", "role", "reader", "readers"),
    [
        ("chief", 0, Role.CHIEF, 0, 3),
        ("worker", 0, Role.WORKER, 1, 3),
        ("worker", 1, Role.WORKER, 2, 3),
        ("ps", 1, Role.PS, 0, 1),
        ("evaluator", 0, Role.EVALUATOR, 0, 1),
    ],
)
def test_tasks_of_a_cluster(monkeypatch, kind, index, role, reader, readers):
    _set(monkeypatch, kind, index)
    assert read_host() == Host(role, False, True, reader, readers)
    assert read_host().is_chief == (kind == "chief")


def test_a_cluster_of_one_is_no_cluster(monkeypatch):
    # Vertex AI describes even a single machine that way.
    _set(monkeypatch, "chief", cluster=CHIEF_ALONE)
    assert read_host() == Host()


@bad_input.row(
    "tf_config",
    "`TpuTrainer` with a chief, a worker and no parameter server",
    'TF_CONFIG has 2 workers, the chief included, and no "ps"',
    'Add at least one "ps"',
)
def test_workers_without_common_variables_are_refused(monkeypatch, refused):
    _set(monkeypatch, "worker", cluster={"chief": ["localhost:1"], "worker": ["localhost:2"]})
    with refused(ValueError):
        read_host()


@pytest.mark.parametrize(
    ("number", "role"), [("0", Role.CHIEF), ("1", Role.TPU_HOST), ("2", Role.TPU_HOST)]
)
def test_hosts_of_a_tpu_slice(monkeypatch, number, role):
    _slice(monkeypatch, number)
    assert read_host() == Host(role, is_alone=False)


def test_a_slice_of_one_host_is_alone(monkeypatch):
    _slice(monkeypatch, "0", hosts="localhost")
    assert read_host() == Host()


@pytest.mark.parametrize(
    "number",
    [
        bad_input.case(
            "tf_config",
            f"`TPU_WORKER_ID={number}` and 3 names in `TPU_WORKER_HOSTNAMES`",
            f"TPU_WORKER_ID={number!r} is not the number of one of the 3 hosts",
            "set it to this host's number",
            values=number,
        )
        for number in ["", "3", "x", "-1", "²"]
    ],
)
def test_a_host_that_is_not_in_the_slice_is_refused(monkeypatch, number, refused):
    _slice(monkeypatch, number)
    with refused(ValueError):
        read_host()


def test_what_runs_alone_sees_no_cluster(monkeypatch):
    _set(monkeypatch, "worker")
    assert RunConfig().task_type == "worker" and RunConfig().num_ps_replicas == 2
    alone = RunConfig(tf_config=ALONE)
    assert alone.is_chief and alone.num_ps_replicas == 0 and not alone.master
    assert alone.replace(tf_random_seed=1).is_chief


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
        """Starts a host with its own outputs, except for model_run."""
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


@pytest.mark.sweep
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


@pytest.mark.sweep
def test_the_model_is_trained_by_both(hosts):
    assert read_eval_metrics(str(hosts.folder / "chief0" / "model")).global_step >= STEPS
    assert "Reads part 1 of 2 of the training input." in hosts.log("chief0")
    assert "Reads part 2 of 2 of the training input." in hosts.log("worker0")
    assert "Loss for final step" in hosts.log("worker0")
    # The whole training of the chief was shorter than its steps: others were the worker's.
    assert checkpoints.global_step_of(str(hosts.model_run)) >= STEPS


@pytest.mark.sweep
def test_the_chief_came_back_where_it_was(hosts):
    # A checkpoint that was whole when its writer died counts, even if nothing names it yet.
    (resumed,) = re.findall(r"Resuming from the checkpoint of step (\d+)", hosts.log("chief0"))
    assert hosts.killed_at <= int(resumed) < STEPS
    assert not list(hosts.checkpoints.rglob("*.index"))
    assert json.loads((hosts.model_run / STATUS_FILE).read_text())["state"] == "succeeded"


@pytest.mark.sweep
def test_the_evaluator_has_watched(hosts):
    steps = {
        event.step
        for path in (hosts.model_run / "eval").glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if any(value.tag == "loss" for value in event.summary.value)
    }
    assert len(steps) >= 2
