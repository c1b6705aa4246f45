"""The gate under the entry point of Kubeflow V2: the container's own command, as a local process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PipelineRun

ROOT = Path(__file__).parent.parent.parent
NAME = "projects/7/locations/here/metadataStores/default/artifacts/{}"


@pytest.fixture(scope="module")
def specification(tmp_path_factory) -> dict[str, Any]:
    """The taxi pipeline, compiled."""
    output = tmp_path_factory.mktemp("compiled") / "taxi.json"
    subprocess.run(
        [
            sys.executable,
            "kubeflow/kubeflow_runner.py",
            *("--pipeline", "taxi", "--root", "gs://bucket/taxi", "--data", "gs://bucket/data"),
            *("--image", "registry.example/pipelines:1", "--output", str(output)),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=200,
    )
    return json.loads(output.read_text(encoding="utf-8"))["pipelineSpec"]


def _artifact(specification: dict[str, Any], kind: str, uri: Path, number: int) -> dict[str, Any]:
    """An artifact as the backend hands it over: with a resource name instead of an id."""
    component = specification["components"]["EvalMetricsGate"]
    sides = (component["inputDefinitions"], component["outputDefinitions"])
    schemas = {
        name: definition["artifactType"]
        for side in sides
        for name, definition in side["artifacts"].items()
    }
    return {
        "artifacts": [{"name": NAME.format(number), "uri": str(uri), "type": schemas[kind]}],
    }


def _run_gate(
    specification: dict[str, Any], inputs: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Runs the container's arguments and gives what the backend would read."""
    container = specification["deploymentSpec"]["executors"]["EvalMetricsGate_executor"]
    arguments = list(container["container"]["args"])
    task = specification["root"]["dag"]["tasks"]["EvalMetricsGate"]
    parameters = {
        name: value["runtimeValue"]["constantValue"]
        for name, value in task["inputs"]["parameters"].items()
    }
    invocation = {
        "inputs": {"artifacts": inputs, "parameters": parameters},
        "outputs": {
            "artifacts": {
                name: _artifact(specification, name, folder / name, 90 + number)
                for number, name in enumerate(("evaluation", "blessing"))
            },
            "outputFile": str(folder / "task" / "executor_output.json"),
        },
    }
    arguments[arguments.index("{{$}}")] = json.dumps(invocation)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor",
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=200,
    )
    return json.loads(Path(invocation["outputs"]["outputFile"]).read_text(encoding="utf-8"))


@pytest.mark.e2e
@pytest.mark.parametrize("with_baseline", [False, True])
def test_a_blessing_carries_the_models_resource_names(
    specification, taxi_run: PipelineRun, tmp_path, with_baseline
):
    model = taxi_run.output_folder("TpuTrainer", "model")
    evaluation = taxi_run.output_folder("TpuTrainer", "evaluation")
    inputs = {
        "model": _artifact(specification, "model", model, 11),
        "candidate_evaluation": _artifact(specification, "candidate_evaluation", evaluation, 12),
    }
    if with_baseline:
        inputs["baseline_model"] = _artifact(specification, "baseline_model", model, 13)
    written = _run_gate(specification, inputs, tmp_path)
    (blessing,) = written["artifacts"]["blessing"]["artifacts"]
    properties = blessing["metadata"]
    assert properties["blessed"] == 1
    assert properties["current_model_id"] == NAME.format(11)
    assert properties.get("baseline_model_id") == (NAME.format(13) if with_baseline else None)
    assert sorted(os.listdir(tmp_path / "blessing")) == ["BLESSED"]
