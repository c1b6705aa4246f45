"""The taxi pipeline, compiled for Kubeflow and run container by container; the trainer is killed on the way."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

from pipelines.taxi.config import Config
from pipelines.taxi.data import prepare_data
from tests.checkpoint_files import last_whole_step
from tests.engines.containers.compiled_run import ROOT, CompiledRun, TaskProcess
from tests.pipeline_runs import PipelineRun
from tfx_tpu_trainer.components.evaluation import read_eval_metrics
from tfx_tpu_trainer.serving import load_serving

pytestmark = pytest.mark.e2e

STEPS = 1000
SAVE_STEPS = 50
KILLED_AFTER = 100
OF_TFX = (
    "CsvExampleGen",
    "StatisticsGen",
    "SchemaGen",
    "ExampleValidator",
    "Transform",
    "Evaluator",
)


@dataclasses.dataclass
class Run:
    """The run, and what a test can't find in it.

    Attributes:
        compiled: The run, at its end.
        killed: The first attempt at the trainer's task.
        killed_at: Step of its last certainly complete checkpoint.
        record: The record next to its checkpoints.
        trained: The second attempt.
        checkpoints: Where the trainer keeps checkpoints until it has ended.
    """

    compiled: CompiledRun
    killed: TaskProcess
    killed_at: int
    record: dict
    trained: TaskProcess
    checkpoints: Path


def _compile(folder: Path) -> dict:
    output = folder / "taxi.json"
    command = [sys.executable, "-m", "tfx_tpu_trainer.workbench.cli.main", "compile", "--kubeflow"]
    command += ["--pipeline", "taxi"]
    command += [
        "--root",
        str(folder / "root"),
        "--data",
        prepare_data(Config.model_construct(data=None)),
    ]
    command += ["--image", "registry.example/pipelines:1", "--output", str(output)]
    command += ["--set", f"trainer.train_steps={STEPS}"]
    command += ["--set", f"trainer.save_checkpoints_steps={SAVE_STEPS}"]
    # Each evaluation in between builds both graphs again.
    command += ["--set", "trainer.eval_every_steps=null"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    return json.loads(output.read_text(encoding="utf-8"))


def _kill_in_training(started: TaskProcess, checkpoints: Path) -> int:
    ends = time.monotonic() + 300
    while last_whole_step(checkpoints) < KILLED_AFTER:
        assert started.process.poll() is None, started.log.read_text()[-5000:]
        assert time.monotonic() < ends, started.log.read_text()[-5000:]
        time.sleep(0.01)
    started.process.kill()
    started.process.wait()
    return last_whole_step(checkpoints)


@pytest.fixture(scope="module", params=["ours", pytest.param("all", marks=pytest.mark.sweep)])
def run(request, tmp_path_factory, taxi_run: PipelineRun) -> Run:
    folder = tmp_path_factory.mktemp("compiled")
    compiled = CompiledRun(_compile(folder), folder)
    checkpoints = folder / "root" / "checkpoints"
    for task in compiled.order:
        if request.param == "ours" and task in OF_TFX:
            # TFX's own containers start in ten seconds each; what they made on this machine will do.
            compiled.take(task, taxi_run.outputs(task))
        elif task != "TpuTrainer":
            compiled.run(task)
        else:
            killed = compiled.start(task)
            killed_at = _kill_in_training(killed, checkpoints)
            (record,) = checkpoints.rglob("training.json")
            told = json.loads(record.read_text())
            trained = compiled.start(task)
            compiled.finish(trained)
    return Run(compiled, killed, killed_at, told, trained, checkpoints)


def test_every_task_of_the_pipeline_has_run(run):
    assert set(run.compiled.outputs) == {
        "CsvExampleGen",
        "StatisticsGen",
        "SchemaGen",
        "ExampleValidator",
        "Transform",
        "TpuTrainer",
        "Evaluator",
        "latest_blessed_model",
        "EvalMetricsGate",
        "Pusher",
    }


def test_a_killed_trainer_goes_on_from_its_last_checkpoint(run):
    assert KILLED_AFTER <= run.killed_at < STEPS
    assert run.killed.process.returncode == -9
    log = run.trained.log.read_text()
    # A checkpoint that was whole when its writer died counts, even if nothing names it yet.
    where = re.escape(str(run.checkpoints))
    (found,) = re.findall(rf"Resuming from the checkpoint of step (\d+) in {where}", log)
    resumed = int(found)
    assert run.killed_at <= resumed < STEPS
    # The events of both attempts are in model_run: the second one's begin where the first one ended.
    model_run = run.compiled.uri("TpuTrainer", "model_run")
    first, second = (_loss_steps(path) for path in sorted(model_run.glob("events*")))
    assert min(first) < 100 and max(first) < STEPS
    assert min(second) == resumed + 1
    assert read_eval_metrics(str(run.compiled.uri("TpuTrainer", "model"))).global_step == STEPS


def _loss_steps(path: Path) -> list[int]:
    return [
        event.step
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if any(value.tag == "loss" for value in event.summary.value)
    ]


def test_the_checkpoint_folder_is_of_this_node_and_goes_at_the_end(run):
    assert run.record["training"]["node"] == "TpuTrainer"
    (examples,) = run.record["training"]["inputs"]["examples"]
    assert examples["uri"] == str(run.compiled.uri("Transform", "transformed_examples"))
    assert list(run.checkpoints.rglob("*.index")) == []
    assert (run.compiled.uri("TpuTrainer", "model_run") / f"model.ckpt-{STEPS}.index").exists()


def test_the_model_is_blessed_by_its_resource_name_and_pushed(run):
    (model,) = run.compiled.outputs["TpuTrainer"]["model"]
    (blessing,) = run.compiled.outputs["EvalMetricsGate"]["blessing"]
    assert blessing["metadata"]["blessed"] == 1
    assert blessing["metadata"]["current_model_id"] == model["name"]
    assert "baseline_model_id" not in blessing["metadata"]
    assert os.listdir(blessing["uri"]) == ["BLESSED"]
    (pushed,) = run.compiled.outputs["Pusher"]["pushed_model"]
    assert pushed["metadata"]["pushed"] == 1
    (version,) = (run.checkpoints.parent / "serving").iterdir()
    assert load_serving(str(version)).signatures["serving_default"]


def test_metrics_reach_the_backend_with_the_artifacts(run):
    metrics = read_eval_metrics(str(run.compiled.uri("TpuTrainer", "model")))
    for key in ("model", "evaluation"):
        (artifact,) = run.compiled.outputs["TpuTrainer"][key]
        assert artifact["metadata"]["eval_auc"] == pytest.approx(metrics.overall["auc"])
        assert artifact["metadata"]["global_step"] == STEPS


def test_the_page_is_the_file_that_the_backend_shows(run):
    (page,) = run.compiled.outputs["TpuTrainer"]["page"]
    assert page["type"] == {"schemaTitle": "system.HTML", "schemaVersion": "0.0.1"}
    written = (run.compiled.uri("TpuTrainer", "model_run") / "run.html").read_text("utf-8")
    assert Path(page["uri"]).read_text("utf-8") == written


def test_a_pointer_leads_to_it(run):
    (model,) = run.compiled.outputs["TpuTrainer"]["model"]
    pointer = json.loads((run.checkpoints.parent / "taxi" / "blessed.json").read_text())
    assert pointer["uri"] == model["uri"]
    assert pointer["training"] == model["metadata"]["training"]


# tests/components/gate/test_gate_e2e.py has runs that find theirs by the pointer.
@pytest.mark.sweep
def test_the_next_run_finds_it_as_its_baseline_without_ml_metadata(run):
    (model,) = run.compiled.outputs["TpuTrainer"]["model"]
    for task in ("latest_blessed_model", "EvalMetricsGate"):
        run.compiled.run(task)
    (baseline,) = run.compiled.outputs["latest_blessed_model"]["model"]
    assert baseline["uri"] == model["uri"] and baseline["name"] != model["name"]
    (blessing,) = run.compiled.outputs["EvalMetricsGate"]["blessing"]
    assert blessing["metadata"]["baseline_model_id"] == baseline["name"]
    assert "the baseline's" in blessing["metadata"]["verdict"]
