"""kubeflow/kubeflow_runner.py, as a person calls it.

The folder of these tests is not called kubeflow: the name belongs to a package of the index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

ROOT = Path(__file__).parent.parent.parent
IMAGE = "registry.example/pipelines:1"


def _compile(output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "kubeflow/kubeflow_runner.py", "--root", "gs://bucket/taxi"]
    command += ["--data", "gs://bucket/data", "--image", IMAGE, "--output", str(output), *more]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.e2e
def test_the_taxi_pipeline_compiles_offline(tmp_path):
    output = tmp_path / "deep" / "taxi.json"
    result = _compile(output, "--pipeline", "taxi", "--set", "trainer.train_steps=7")
    assert result.returncode == 0, result.stderr
    assert os.listdir(output.parent) == ["taxi.json"]
    document = json.loads(output.read_text(encoding="utf-8"))["pipelineSpec"]
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    assert {"TpuTrainer", "EvalMetricsGate", "Pusher"} <= set(spec.components)
    container = document["deploymentSpec"]["executors"]["TpuTrainer_executor"]["container"]
    assert container["image"] == IMAGE
    assert "tfx_tpu_trainer.component.trainer_executor.TpuTrainerExecutor" in container["args"]
    parameters = spec.root.dag.tasks["TpuTrainer"].inputs.parameters
    assert parameters["module"].runtime_value.constant_value.string_value == "pipelines.taxi.model"
    steps = json.loads(parameters["train_args"].runtime_value.constant_value.string_value)
    assert int(steps["num_steps"]) == 7


def test_an_unknown_pipeline_is_one_line_and_writes_nothing(tmp_path):
    result = _compile(tmp_path / "out" / "taxi.json", "--pipeline", "taxy")
    assert result.returncode != 0
    assert "there is no pipeline 'taxy'; did you mean 'taxi'?" in result.stderr
    assert not (tmp_path / "out").exists()
