"""Describes and submits jobs on Vertex AI: a CustomJob on a TPU slice, a run of a compiled pipeline."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
import typing
from collections.abc import Mapping
from typing import Any

import pydantic

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.clusters._checks import (
    Checked,
    Deadline,
    JobError,
    check_gcs_buckets,
    check_image,
    check_project,
    check_vertex_names,
    check_vertex_project,
    find_credentials,
)
from tfx_tpu_trainer.components.clusters._compiling import CompiledPipeline
from tfx_tpu_trainer.components.clusters._pods import Variable, VariableValue
from tfx_tpu_trainer.hardware import TpuSpec

Name = typing.Annotated[str, pydantic.Field(min_length=1)]

_ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1", "PYTHONUNBUFFERED": "1"}
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"

_SEND_SECONDS = 60.0
# https://cloud.google.com/vertex-ai/docs/training/schedule-jobs-dws
_LONGEST_FLEX_START = 7 * 24 * 3600


class VertexJob(Checked):
    """Where, and under which account, a CustomJob runs.

    Attributes:
        project: Google Cloud project.
        region: Region of Vertex AI, such as `"us-central1"`.
        image: Container image of the TPU workers, which holds `tfx_tpu_trainer` and the user's
            code; a `TpuSpec.runtime_image` wins over it.
        service_account: The job's account. Defaults to `None`: Vertex AI's own.
        network: Full name of a network to peer with. Defaults to `None`.
        timeout_seconds: Seconds after which the job is stopped. Defaults to `None`: Vertex AI's
            7 days.
        labels: Labels of the job.
        env: Environment variables of its containers, by name.
    """

    project: Name
    region: Name
    image: Name
    service_account: Name | None = None
    network: Name | None = None
    timeout_seconds: typing.Annotated[int, pydantic.Field(gt=0)] | None = None
    labels: Mapping[str, str] = {}
    env: Mapping[Variable, VariableValue] = {}

    @pydantic.model_validator(mode="after")
    def _check(self) -> VertexJob:
        check_project(self.project, self.region)
        check_image(self.image)
        check_vertex_names(None, self.service_account)
        return self


def custom_job(job: VertexJob, tpu: TpuSpec, *, display_name: str) -> dict[str, Any]:
    """Returns a CustomJob, except for the command of its containers.

    Vertex AI makes as many machines as the topology needs: a slice is one worker pool with one
    replica, for any number of hosts.

    Args:
        job: Where it runs.
        tpu: The slice.
        display_name: Name of the job.

    Returns:
        Keyword arguments of `google.cloud.aiplatform_v1.types.CustomJob`.

    Raises:
        ValueError: If Vertex AI lacks the slice, the slice's zone is not in the job's region, or the job may last
            longer than a slice can be reserved.
    """
    machine = tpu.vertex_machine_spec()
    if tpu.zone and not tpu.zone.startswith(f"{job.region}-"):
        raise JobError(
            f"tpu.zone={tpu.zone!r} is not in region={job.region!r}: name a zone of that region, or "
            "leave the zone out"
        )
    if tpu.reservation:
        machine["reservation_affinity"] = {
            "reservation_affinity_type": "SPECIFIC_RESERVATION",
            "key": _RESERVATION_KEY,
            "values": [_reservation_name(job, tpu)],
        }
    if tpu.runtime_image:
        check_image(tpu.runtime_image, setting="tpu.runtime_image")
    image = tpu.runtime_image or job.image
    variables = [
        {"name": name, "value": value} for name, value in {**_ENVIRONMENT, **job.env}.items()
    ]
    pool = {
        "machine_spec": machine,
        "replica_count": 1,
        "container_spec": {"image_uri": image, "env": variables},
    }
    scheduling: dict[str, Any] = {"strategy": "SPOT"} if tpu.spot else {}
    if tpu.flex_start:
        scheduling["strategy"] = "FLEX_START"
        if (job.timeout_seconds or 0) > _LONGEST_FLEX_START:
            raise JobError(
                f"timeout_seconds={job.timeout_seconds} with tpu.flex_start=True, which has a slice for "
                f"{_LONGEST_FLEX_START} seconds (seven days) at most: give no more, or leave one out"
            )
    if job.timeout_seconds:
        scheduling["timeout"] = {"seconds": job.timeout_seconds}
    optional = {
        "scheduling": scheduling,
        "service_account": job.service_account,
        "network": job.network,
    }
    return {
        "display_name": display_name,
        "job_spec": {
            "worker_pool_specs": [pool],
            **{key: value for key, value in optional.items() if value},
        },
        "labels": dict(job.labels),
    }


def _reservation_name(job: VertexJob, tpu: TpuSpec) -> str:
    name = typing.cast(str, tpu.reservation)
    if "/" in name:
        return name
    if not tpu.zone:
        raise JobError(
            f"tpu.reservation={name!r}: Vertex AI needs its full name; give tpu.zone too, or "
            f"'projects/{job.project}/zones/ZONE/reservations/{name}'"
        )
    return f"projects/{job.project}/zones/{tpu.zone}/reservations/{name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VertexRun:
    """A run of a compiled pipeline.

    Attributes:
        project: Google Cloud project.
        region: Region of Vertex AI.
        job_id: Id of the job. Defaults to `None`: the pipeline's name and the time.
        service_account: The tasks' account. Defaults to `None`: Vertex AI's own.
        network: Full name of a network to peer with. Defaults to `None`.
    """

    project: str
    region: str
    job_id: str | None = None
    service_account: str | None = None
    network: str | None = None

    def __post_init__(self) -> None:
        check_vertex_names(self.job_id, self.service_account)

    def check(self, paths: Mapping[str, str], deadline: Deadline) -> Any:
        """Checks with Google Cloud whether the run can be sent.

        Args:
            paths: Paths that its tasks use, by the names of their settings.
            deadline: The time limit for all checks.

        Returns:
            The google-auth credentials that were used.

        Raises:
            JobError: If there are no credentials, or the project, the region or a bucket can't be used with them.
        """
        credentials = find_credentials(deadline)
        check_vertex_project(self.project, self.region, credentials, deadline)
        check_gcs_buckets(paths, credentials, deadline)
        return credentials

    def pipeline_job(self, compiled: CompiledPipeline) -> Any:
        """Lets Vertex AI's SDK read the pipeline and check it.

        Args:
            compiled: The pipeline.

        Returns:
            A `google.cloud.aiplatform.PipelineJob`. `submit` here does not call its own `submit`, which looks up the
            root's bucket in Cloud Storage for up to two minutes, and makes a missing bucket.
        """
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import aiplatform

        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / f"{compiled.name}.json"
            compiled.write(template)
            return aiplatform.PipelineJob(
                display_name=compiled.name,
                template_path=str(template),
                job_id=self.job_id,
                pipeline_root=compiled.root,
                project=self.project,
                location=self.region,
                credentials=AnonymousCredentials(),
            )

    def describe(self, compiled: CompiledPipeline) -> dict[str, Any]:
        """Returns what `submit` sends, as JSON values."""
        optional = {"serviceAccount": self.service_account, "network": self.network}
        return {
            "parent": f"projects/{self.project}/locations/{self.region}",
            "pipeline_job_id": self.pipeline_job(compiled).job_id,
            "pipeline_job": {
                **compiled.job,
                **{key: value for key, value in optional.items() if value},
            },
        }

    def submit(self, compiled: CompiledPipeline, credentials: Any) -> str:
        """Starts the run.

        Args:
            compiled: The pipeline.
            credentials: Credentials of google-auth.

        Returns:
            The job's resource name.

        Raises:
            JobError: If Vertex AI rejects it, or has not answered.
        """
        import google.api_core.exceptions
        from google.cloud import aiplatform_v1

        request = self.describe(compiled)
        client = aiplatform_v1.PipelineServiceClient(
            credentials=credentials,
            client_options={"api_endpoint": f"{self.region}-aiplatform.googleapis.com"},
        )
        try:
            with said_while_waiting(
                f"Vertex AI in {self.region} to accept the job",
                change=f"The time limit is {_SEND_SECONDS:g} s.",
            ):
                job = client.create_pipeline_job(
                    parent=request["parent"],
                    pipeline_job=aiplatform_v1.PipelineJob.from_json(
                        json.dumps(request["pipeline_job"])
                    ),
                    pipeline_job_id=request["pipeline_job_id"],
                    timeout=_SEND_SECONDS,
                )
        except google.api_core.exceptions.GoogleAPIError as error:
            said = "did not accept the job"
            if not isinstance(error, google.api_core.exceptions.ClientError):
                # Vertex AI may still accept it.
                said = (
                    f"has not confirmed the job {request['pipeline_job_id']!r}: look for it there, "
                    "or send it again with this job_id, which it accepts only once"
                )
            raise JobError(
                f"project={self.project!r}, region={self.region!r}: Vertex AI {said}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from None
        return job.name
