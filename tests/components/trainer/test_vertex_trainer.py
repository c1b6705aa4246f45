"""Tests VertexTpuTrainerExecutor with a job service that runs each CustomJob's command on this machine."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from google.cloud.aiplatform import gapic
from google.cloud.aiplatform_v1.types import CustomJob, JobState

from tests.components.trainer.execution import Execution
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.components import VertexTpuTrainerExecutor
from tfx_tpu_trainer.components.clusters._vertex import VertexJob
from tfx_tpu_trainer.components.evaluation import read_eval_metrics

ROOT = Path(__file__).parents[3]
JOB = VertexJob.parse(project="our-models", region="us-central1", image="r.example/p:1")


def _in_a_process(arguments: list[str], variables: dict[str, str]) -> int:
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=300, check=False).returncode


def _in_this_process(arguments: list[str], variables: dict[str, str]) -> int:
    """Runs `-m`, a module and its arguments: the imports of a new process take ten seconds."""
    option, module, *rest = arguments
    assert option == "-m"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        patched.setattr(sys, "argv", [module, *rest])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    return ended.value.code or 0


class LocalJobService:
    """Vertex AI's job service as far as TFX uses it; a job has ended when it is created."""

    jobs: ClassVar[list[CustomJob]] = []
    endpoints: ClassVar[list[str]] = []
    command: ClassVar[list[str] | None] = None
    runs: ClassVar[Callable[[list[str], dict[str, str]], int]]

    def __init__(self, client_options):
        self.endpoints.append(client_options["api_endpoint"])

    def create_custom_job(self, *, parent, custom_job):
        # The real message type checks every field.
        job = CustomJob(**custom_job)
        (pool,) = job.job_spec.worker_pool_specs
        python, *arguments = self.command or pool.container_spec.command
        assert python == "python"
        variables = {each.name: each.value for each in pool.container_spec.env}
        code = self.runs(arguments, {**variables, "TFX_TPU_TRAINER_EMULATE": "1"})
        failed, succeeded = JobState.JOB_STATE_FAILED, JobState.JOB_STATE_SUCCEEDED
        job.state = failed if code else succeeded
        job.name = f"{parent}/customJobs/{len(self.jobs)}"
        self.jobs.append(job)
        return job

    def get_custom_job(self, *, name, retry):
        del retry
        return next(job for job in self.jobs if job.name == name)


@pytest.fixture
def service(monkeypatch):
    fields = {"jobs": [], "endpoints": [], "runs": staticmethod(_in_a_process)}
    made = type("Service", (LocalJobService,), fields)
    monkeypatch.setattr(gapic, "JobServiceClient", made)
    return made


def _execution(folder: Path) -> Execution:
    return Execution.of_trainer(
        folder,
        steps=20,
        vertex_job=JOB.model_dump_json(exclude_defaults=True),
        tpu='{"slice_name":"v5e:2x2"}',
        export_to_tpu=0,
    )


@pytest.mark.e2e
@mostly_swept("runs", [_in_this_process, _in_a_process], kept=[_in_this_process])
def test_the_job_fills_the_artifacts_of_the_task(service, tmp_path, runs):
    service.runs = staticmethod(runs)
    execution = _execution(tmp_path)
    VertexTpuTrainerExecutor().Do(execution.inputs, execution.outputs, execution.properties)

    (job,) = service.jobs
    assert set(service.endpoints) == {"us-central1-aiplatform.googleapis.com"}
    assert job.name.startswith("projects/our-models/locations/us-central1/")
    (pool,) = job.job_spec.worker_pool_specs
    assert pool.machine_spec.machine_type == "ct5lp-hightpu-4t"
    assert pool.container_spec.image_uri == "r.example/p:1"
    command = list(pool.container_spec.command)
    assert command[:3] == ["python", "-m", "tfx.scripts.run_executor"]
    executor = command[command.index("--executor_class_path") + 1]
    assert executor == "tfx_tpu_trainer.components.trainer.trainer_executor.TpuTrainerExecutor"

    metrics = read_eval_metrics(execution.model.uri)
    assert metrics.global_step == 20
    for key in ("model", "evaluation"):
        (artifact,) = execution.outputs[key]
        assert artifact.get_custom_property("global_step") == 20
        assert artifact.get_custom_property("eval_loss") == pytest.approx(metrics.overall["loss"])
    assert os.path.isdir(execution.serving_dir)


def test_a_job_that_fails_fails_the_task(service, tmp_path):
    service.command = ["python", "-c", "raise SystemExit(3)"]
    execution = _execution(tmp_path)
    with pytest.raises(RuntimeError, match="customJobs/0' did not succeed"):
        VertexTpuTrainerExecutor().Do(execution.inputs, execution.outputs, execution.properties)


def test_a_job_that_leaves_nothing_behind_fails_the_task(service, tmp_path):
    service.command = ["python", "-c", "pass"]
    execution = _execution(tmp_path)
    with pytest.raises(RuntimeError, match=r"has succeeded, but .* has no eval_metrics.json"):
        VertexTpuTrainerExecutor().Do(execution.inputs, execution.outputs, execution.properties)
