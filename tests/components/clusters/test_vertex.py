"""Tests CustomJobs of Vertex AI with Vertex AI's own message types, and the request of a run."""

from __future__ import annotations

import dataclasses

import pytest
from google.api_core.exceptions import DeadlineExceeded, PermissionDenied, RetryError
from google.auth.credentials import AnonymousCredentials
from google.cloud.aiplatform_v1.services.pipeline_service import PipelineServiceClient
from google.cloud.aiplatform_v1.types import (
    AcceleratorType,
    CustomJob,
    ReservationAffinity,
    custom_job,
)

from tests.bad_input import case, row
from tests.components.clusters.compiled import tiny
from tfx_tpu_trainer.components.clusters._checks import JobError
from tfx_tpu_trainer.components.clusters._vertex import VertexJob, VertexRun
from tfx_tpu_trainer.components.clusters._vertex import custom_job as describe
from tfx_tpu_trainer.hardware import TpuSpec, known_slices

JOB = VertexJob.parse(project="our-models", region="us-central1", image="r.example/p:1")


def _message(tpu: TpuSpec, job: VertexJob = JOB) -> CustomJob:
    return CustomJob(**describe(job, tpu, display_name="a training"))


@pytest.mark.parametrize("found", known_slices(), ids=lambda each: f"{each.name}/{each.hosts}")
def test_every_slice_is_a_valid_custom_job_or_says_why_it_is_none(found):
    spec = TpuSpec.parse(found.name, hosts=found.hosts)
    if found.vertex_machine_type is None:
        with pytest.raises(ValueError, match=rf"Vertex AI has no machines with {found.name}"):
            _message(spec)
        return
    (pool,) = _message(spec).job_spec.worker_pool_specs
    # One replica is one slice, however many hosts it has.
    assert pool.replica_count == 1
    assert pool.container_spec.image_uri == "r.example/p:1"
    machine = pool.machine_spec
    assert machine.machine_type == found.vertex_machine_type
    if found.chip.generation in ("v2", "v3"):
        assert machine.machine_type == "cloud-tpu" and not machine.tpu_topology
        kind = {"v2": AcceleratorType.TPU_V2, "v3": AcceleratorType.TPU_V3}
        assert machine.accelerator_type == kind[found.chip.generation]
        assert machine.accelerator_count == found.num_devices
    else:
        assert machine.tpu_topology == found.topology
        assert machine.accelerator_type == AcceleratorType.ACCELERATOR_TYPE_UNSPECIFIED


def test_spot_timeout_account_network_labels_and_image():
    job = VertexJob.parse(
        project="our-models",
        region="us-central1",
        image="r.example/p:1",
        service_account="trainer@our-models.iam.gserviceaccount.com",
        network="projects/7/global/networks/n",
        timeout_seconds=3600,
        labels={"team": "a"},
        env={"LEVEL": "2"},
    )
    tpu = TpuSpec.parse("v5e:2x2", spot=True, runtime_image="r.example/tpu:2", zone="us-central1-a")
    message = _message(tpu, job)
    spec = message.job_spec
    assert spec.scheduling.strategy == custom_job.Scheduling.Strategy.SPOT
    assert spec.scheduling.timeout.seconds == 3600
    assert spec.service_account.startswith("trainer@") and spec.network.endswith("/n")
    assert dict(message.labels) == {"team": "a"}
    (pool,) = spec.worker_pool_specs
    assert pool.container_spec.image_uri == "r.example/tpu:2"
    variables = {each.name: each.value for each in pool.container_spec.env}
    assert (variables["TF_USE_LEGACY_KERAS"], variables["LEVEL"]) == ("1", "2")
    assert not _message(TpuSpec.parse("v5e:2x2")).job_spec.scheduling.strategy


def test_flex_start_waits_for_a_slice():
    tpu = TpuSpec.parse("v5e:2x2", flex_start=True)
    scheduling = _message(tpu).job_spec.scheduling
    assert scheduling.strategy == custom_job.Scheduling.Strategy.FLEX_START


@row(
    "runners",
    "a CustomJob of `flex_start` with `timeout_seconds=604801`",
    "timeout_seconds=604801 with tpu.flex_start=True, which has a slice for 604800 seconds (seven days)",
    "give no more, or leave one out",
)
def test_flex_start_has_a_slice_for_a_week(refused):
    week = {"project": "our-models", "region": "us-central1", "image": "r.example/p:1"}
    tpu = TpuSpec.parse("v5e:2x2", flex_start=True)
    _message(tpu, VertexJob.parse(**week, timeout_seconds=604_800))
    with refused(ValueError):
        _message(tpu, VertexJob.parse(**week, timeout_seconds=604_801))


def test_a_reservation_is_named_in_full():
    tpu = TpuSpec.parse("v5e:2x2", reservation="ours", zone="us-central1-a")
    affinity = _message(tpu).job_spec.worker_pool_specs[0].machine_spec.reservation_affinity
    assert affinity.reservation_affinity_type == ReservationAffinity.Type.SPECIFIC_RESERVATION
    name = "projects/our-models/zones/us-central1-a/reservations/ours"
    assert list(affinity.values) == [name]
    full = TpuSpec.parse("v5e:2x2", reservation=name)
    affinity = _message(full).job_spec.worker_pool_specs[0].machine_spec.reservation_affinity
    assert list(affinity.values) == [name]


@pytest.mark.parametrize(
    "options",
    [
        case(
            "runners",
            f"a CustomJob on `v5e:2x2` with `{name}={value!r}`",
            *says,
            values={name: value},
        )
        for name, value, *says in (
            (
                "reservation",
                "ours",
                "tpu.reservation='ours': Vertex AI needs its full name; give tpu.z",
            ),
            ("runtime_image", "r.example/tpu", "tpu.runtime_image='r.example/tpu' has no tag"),
            (
                "zone",
                "us-east1-b",
                "tpu.zone='us-east1-b' is not in region='us-central1': name a zone",
            ),
        )
    ],
)
def test_a_slice_that_the_job_cannot_have_is_refused(options, refused):
    with refused(ValueError):
        _message(TpuSpec.parse("v5e:2x2", **options))


@pytest.mark.parametrize(
    "changes",
    [
        case("runners", f"`VertexJob.parse({name}={value!r})`", *says, values={name: value})
        for name, value, *says in (
            ("project", "X", "project='X' is not the id of a Google Cloud project; give its id"),
            (
                "region",
                "us-central1-a",
                "region='us-central1-a' is not the name of a region; give one",
            ),
            ("image", "r.example/p", "image='r.example/p' has no tag"),
            (
                "service_account",
                "runs",
                "service_account='runs' is not a Google Cloud account; give",
            ),
            ("timeout_seconds", 0, "VertexJob timeout_seconds=0: Input should be greater than 0"),
            ("zone", "a", "VertexJob zone='a': unknown attribute; leave it out"),
        )
    ],
)
def test_a_job_that_cannot_be_is_refused(changes, refused):
    values = {"project": "our-models", "region": "us-central1", "image": "r.example/p:1"}
    with refused(ValueError):
        VertexJob.parse(**{**values, **changes})


def test_a_job_is_stored_as_json():
    assert VertexJob.model_validate_json(JOB.model_dump_json(exclude_defaults=True)) == JOB


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
