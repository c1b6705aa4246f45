"""A submission to Vertex AI, up to the call that would leave this machine."""

from __future__ import annotations

import dataclasses

import pytest
from google.api_core.exceptions import DeadlineExceeded, PermissionDenied, RetryError
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1.services.pipeline_service import PipelineServiceClient

from tests.bad_input import case, row
from tests.components.clusters.compiled import tiny
from tfx_tpu_trainer.components.clusters._checks import JobError
from tfx_tpu_trainer.components.clusters._vertex_run import VertexRun

RUN = VertexRun(
    project="our-models",
    region="us-central1",
    job_id="tiny-1",
    service_account="runs@our-models.iam.gserviceaccount.com",
)


def test_a_submission_is_one_request(monkeypatch):
    requests = []

    def create(self, *, parent, pipeline_job, pipeline_job_id, timeout):
        del self
        requests.append((parent, pipeline_job, pipeline_job_id, timeout))
        pipeline_job.name = f"{parent}/pipelineJobs/{pipeline_job_id}"
        return pipeline_job

    monkeypatch.setattr(PipelineServiceClient, "create_pipeline_job", create)
    name = RUN.submit(tiny(), AnonymousCredentials())
    ((parent, job, job_id, timeout),) = requests
    assert name == "projects/our-models/locations/us-central1/pipelineJobs/tiny-1"
    assert (parent, job_id) == ("projects/our-models/locations/us-central1", "tiny-1")
    assert job.service_account == RUN.service_account
    assert job.runtime_config.gcs_output_directory == "gs://bucket/tiny"
    assert job.pipeline_spec["pipelineInfo"]["name"] == "tiny"
    assert timeout == 60


@row(
    "runners",
    "a job that Vertex AI refuses",
    "project='our-models', region='us-central1': Vertex AI did not accept the job: 403",
)
def test_a_refusal_names_project_and_region(monkeypatch, refused):
    def create(self, **request):
        raise PermissionDenied("aiplatform.pipelineJobs.create")

    monkeypatch.setattr(PipelineServiceClient, "create_pipeline_job", create)
    with refused(JobError):
        RUN.submit(tiny(), AnonymousCredentials())


@row(
    "runners",
    "a job that Vertex AI does not answer to",
    "project='our-models', region='us-central1': Vertex AI has not confirmed the job 'tiny-1': "
    "look for it there, or send it again with this job_id, which it accepts only once: 504",
)
@pytest.mark.parametrize("error", [DeadlineExceeded, RetryError])
def test_a_job_that_may_have_been_taken_is_not_called_refused(monkeypatch, refused, error):
    def create(self, **request):
        raise error("504 too late", *([None] if error is RetryError else []))

    monkeypatch.setattr(PipelineServiceClient, "create_pipeline_job", create)
    with refused(JobError):
        RUN.submit(tiny(), AnonymousCredentials())


@pytest.mark.parametrize(
    "changes",
    [
        case("runners", f"`VertexRun({name}={value!r})`", *says, values={name: value})
        for name, value, *says in (
            (
                "job_id",
                "Taxi 1",
                "job_id='Taxi 1' is not a valid id of a job; give up to 128 lower-case letters",
            ),
            (
                "job_id",
                "",
                "job_id='' is not a valid id of a job; give up to 128 lower-case letters",
            ),
            (
                "service_account",
                "runs",
                "service_account='runs' is not a Google Cloud account; give",
            ),
        )
    ],
)
def test_names_have_a_form(changes, refused):
    with refused(JobError):
        dataclasses.replace(RUN, **changes)
