"""A run on Vertex AI Pipelines: what is sent, and the sending."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
from typing import Any

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.clusters._checks import JobError, check_vertex_names
from tfx_tpu_trainer.components.clusters._compiled_pipeline import CompiledPipeline

_SEND_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class VertexRun:
    """A run of a compiled pipeline.

    Attributes:
        project: Google Cloud project.
        region: Region of Vertex AI.
        job_id: Id of the job. Defaults to `None`: the pipeline's name and the time.
        service_account: Account that the tasks run as. Defaults to `None`: Vertex AI's own.
        network: Full name of a network to peer with. Defaults to `None`.
    """

    project: str
    region: str
    job_id: str | None = None
    service_account: str | None = None
    network: str | None = None

    def __post_init__(self) -> None:
        check_vertex_names(self.job_id, self.service_account)

    def pipeline_job(self, compiled: CompiledPipeline) -> Any:
        """Lets Vertex AI's SDK read the pipeline and check it.

        Args:
            compiled: The pipeline.

        Returns:
            A `google.cloud.aiplatform.PipelineJob`. Its own `submit` asks Cloud Storage for the root's
            bucket, for up to two minutes, and makes the bucket where there is none; so it is not
            what `submit` calls.
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
        """Returns what `submit` sends, in JSON form, without sending it."""
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
            JobError: If Vertex AI does not take it, or has not said whether it does.
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
                # It may be taken after all.
                said = (
                    f"has not confirmed the job {request['pipeline_job_id']!r}: look for it there, "
                    "or send it again with this job_id, which it accepts only once"
                )
            raise JobError(
                f"project={self.project!r}, region={self.region!r}: Vertex AI {said}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from None
        return job.name
