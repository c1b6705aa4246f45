"""Tests `compile --vertex` as typed; Vertex AI's own client reads the result."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.cloud.aiplatform_v1.types import CustomJob, PipelineJob
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.bad_input import case
from tests.workbench.cli.conftest import IMAGE, Run, compiled_once
from tfx_tpu_trainer.components.clusters._vertex import VertexJob, custom_job
from tfx_tpu_trainer.hardware import TpuSpec

TPU = ("--set", "trainer.tpu=v5e:2x4")


@pytest.fixture(scope="module")
def compiled(compile_vertex, tmp_path_factory):
    """Compiles a pipeline with a TPU, once for each form."""
    return compiled_once(
        compile_vertex,
        tmp_path_factory.mktemp("compiled"),
        *("--retries", "2", "--service-account", "runs@our-models.iam.gserviceaccount.com", *TPU),
    )


@pytest.mark.e2e
@pytest.mark.parametrize("pipeline", ["taxi", "digits"])
@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_vertex_ais_client_takes_both_pipelines(compiled, pipeline, ending):
    output = compiled(pipeline, ending)
    job = aiplatform.PipelineJob(
        display_name=pipeline,
        template_path=str(output),
        project="our-models",
        location="us-central1",
        credentials=AnonymousCredentials(),
    )
    assert job.job_id.startswith(pipeline)


@pytest.mark.e2e
def test_the_trainer_starts_a_custom_job(compiled):
    document = json.loads(compiled("taxi", "json").read_text(encoding="utf-8"))
    # Vertex AI has no nodes to select.
    assert "platformSpec" not in document
    assert document["runtimeConfig"] == {"gcsOutputDirectory": "gs://bucket/taxi/artifacts"}
    spec = document["pipelineSpec"]
    message = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    container = spec["deploymentSpec"]["executors"]["TpuTrainer_executor"]["container"]
    assert (
        "tfx_tpu_trainer.components.trainer.vertex_trainer.VertexTpuTrainerExecutor"
        in container["args"]
    )
    assert "resources" not in container
    outputs = message.components["TpuTrainer"].output_definitions.artifacts
    assert set(outputs) == {"model", "model_run", "evaluation", "page"}
    assert outputs["page"].artifact_type.schema_title == "system.HTML"
    task = message.root.dag.tasks["TpuTrainer"]
    assert task.retry_policy.max_retry_count == 2

    def constant(name: str) -> Any:
        return json.loads(task.inputs.parameters[name].runtime_value.constant.string_value)

    job = VertexJob.model_validate(constant("vertex_job"))
    assert (job.project, job.region, job.image) == ("our-models", "us-central1", IMAGE)
    assert job.service_account == "runs@our-models.iam.gserviceaccount.com"
    tpu = TpuSpec.read(constant("tpu"))
    (pool,) = CustomJob(**custom_job(job, tpu, display_name="t")).job_spec.worker_pool_specs
    assert pool.machine_spec.machine_type == "ct5lp-hightpu-8t"


@pytest.mark.e2e
def test_without_a_tpu_the_trainer_trains_in_its_own_task(compile_vertex, tmp_path):
    output = tmp_path / "taxi.json"
    result = compile_vertex("--output", str(output))
    assert result.exit_code == 0, result.output
    spec = json.loads(output.read_text(encoding="utf-8"))["pipelineSpec"]
    container = spec["deploymentSpec"]["executors"]["TpuTrainer_executor"]["container"]
    assert (
        "tfx_tpu_trainer.components.trainer.trainer_executor.TpuTrainerExecutor"
        in container["args"]
    )


@pytest.mark.e2e
def test_tasks_and_the_custom_job_have_what_vertex_ai_can_give(compile_vertex, monkeypatch):
    monkeypatch.setenv("PATH", "")
    account = "runs@our-models.iam.gserviceaccount.com"
    result = compile_vertex(
        *("--dry-run", *TPU, "--set", f"pods.service_account={account}"),
        *("--set", "pods.all={env: {LEVEL: '1'}, labels: {team: rides}}"),
        *("--set", "pods.trainer={env: {LEVEL: '2'}, labels: {task: training}}"),
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    job = PipelineJob.from_json(json.dumps(printed["pipeline_job"]))
    assert (job.service_account, dict(job.labels)) == (account, {"team": "rides"})
    levels = {
        label: executor["container"]["env"][0]["value"]
        for label, executor in printed["pipeline_job"]["pipelineSpec"]["deploymentSpec"][
            "executors"
        ].items()
        if "container" in executor
    }
    assert levels.pop("TpuTrainer_executor") == "2"
    assert set(levels.values()) == {"1"}
    custom = CustomJob(**printed["trainers_custom_job"])
    assert custom.job_spec.service_account == account
    assert dict(custom.labels) == {"team": "rides", "task": "training"}
    (pool,) = custom.job_spec.worker_pool_specs
    assert {each.name: each.value for each in pool.container_spec.env}["LEVEL"] == "2"


@pytest.mark.e2e
def test_a_dry_run_prints_the_job_and_sends_nothing(compile_vertex, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    account = "runs@our-models.iam.gserviceaccount.com"
    result = compile_vertex("--dry-run", "--job-id", "taxi-1", "--service-account", account, *TPU)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["parent"] == "projects/our-models/locations/us-central1"
    assert printed["pipeline_job_id"] == "taxi-1"
    pool = CustomJob(**printed["trainers_custom_job"]).job_spec.worker_pool_specs[0]
    assert pool.machine_spec.tpu_topology == "2x4"
    job = printed["pipeline_job"]
    assert job["serviceAccount"] == account
    json_format.ParseDict(job["pipelineSpec"], pipeline_spec_pb2.PipelineSpec())
    assert f"note: image {IMAGE!r} was not checked (docker is not installed)" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        case(
            "runners",
            f"`compile --vertex {shlex.join(arguments)}`",
            "Error: ",
            *says,
            values=(arguments,),
        )
        for arguments, *says in (
            (
                ("--gcp-project", "X"),
                "project='X' is not the id of a Google Cloud project; give its id",
            ),
            (
                ("--region", "us-central1-a"),
                "region='us-central1-a' is not the name of a region; give one",
            ),
            (
                ("--root", "s3://a/b"),
                "root='s3://a/b' is not a path in a bucket",
                "starts with gs://",
            ),
            (("--data", "data"), "data='data' is not a path in a bucket", "starts with gs://"),
            (("--image", "p"), "image='p' has no tag", "add one, as in 'p:1'"),
            (
                ("--job-id", "Taxi 1"),
                "job_id='Taxi 1' is not a valid id of a job; give up to 128 lower-case",
            ),
            (
                ("--service-account", "a"),
                "service_account='a' is not a Google Cloud account; give its",
            ),
            (
                ("--set", "trainer.tpu=v4:2x2x1"),
                "Vertex AI has no machines with v4:2x2x1: use v2, v3",
            ),
            (
                ("--set", "trainer.tpu={slice_name: v5e:2x4, zone: europe-west4-a}"),
                "tpu.zone='europe-west4-a' is not in region='us-central1': name a zone of that region",
            ),
            (
                ("--set", "trainer.module=null", "--set", "trainer.module_file=model.py"),
                "trainer.module_file is 'model.py'",
                "would need the network",
                "'gs://bucket/taxi'",
            ),
            (
                ("--set", "pods.all.tolerations=[{key: spot, operator: Exists}]"),
                "pods.all.tolerations=[{'key': 'spot', 'operator': 'Exists'}] is not supported by tasks of",
                "leave them out: Vertex AI chooses its machines itself",
            ),
            (
                ("--submit",),
                "no usable Google Cloud credentials in '",
                "none.json': File ",
                "; log in",
            ),
        )
    ],
)
def test_what_cannot_run_is_one_line_and_writes_nothing(
    compile_vertex: Run, monkeypatch, tmp_path, arguments, refused
):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    result = compile_vertex("--output", str(tmp_path / "taxi.json"), *arguments)
    refused.output(result)
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
