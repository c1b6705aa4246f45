"""Describes and submits a run on Kubeflow Pipelines."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.clusters._checks import (
    Deadline,
    JobError,
    check_gcs_buckets,
    check_host,
    check_kubeflow_host,
    find_credentials,
)
from tfx_tpu_trainer.components.clusters._compiling import CompiledPipeline
from tfx_tpu_trainer.components.clusters._pods import is_object_name

_SEND_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubeflowRun:
    """A run of a compiled pipeline.

    Attributes:
        host: Address of the API of Kubeflow Pipelines 2; `None` only describes the run.
        namespace: Namespace of the run, in a multi-user installation. Defaults to `None`.
        experiment: The run's experiment. Defaults to `"Default"`.
        name: Its name. Defaults to `None`: the pipeline's.
        service_account: Kubernetes service account of its pods. Defaults to `None`.
        token: Bearer token for the API. Defaults to `None`.
    """

    host: str | None
    namespace: str | None = None
    experiment: str = "Default"
    name: str | None = None
    service_account: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.host is not None:
            check_host(self.host, self.token)
        if self.service_account is not None and not is_object_name(self.service_account):
            raise JobError(
                f"service_account={self.service_account!r} is not a service account of Kubernetes; "
                "give a name of lower-case letters, digits, '-' and '.', such as "
                "'pipeline-runner'"
            )

    def check(
        self, paths: Mapping[str, str], deadline: Deadline, *, later_setting: str | None = None
    ) -> None:
        """Checks with the API, and with Google Cloud Storage for its buckets, whether the run can be sent.

        Args:
            paths: Paths that its pods use, by the names of their settings.
            deadline: The time limit for all checks.
            later_setting: A setting for which the backend must be of version 2.2 or later. Defaults to `None`.

        Raises:
            JobError: If there is no host, or it does not answer, is too old, or a bucket can't be used.
        """
        if self.host is None:
            raise JobError(
                "host is not set: give --host or the environment variable KF_PIPELINES_ENDPOINT"
            )
        check_kubeflow_host(self.host, deadline, token=self.token, later_setting=later_setting)
        if any(path.startswith("gs://") for path in paths.values()):
            check_gcs_buckets(paths, find_credentials(deadline), deadline)

    def describe(self, compiled: CompiledPipeline) -> dict[str, Any]:
        """Returns what `submit` sends, as JSON values."""
        specs: dict[str, Any] = {"pipeline_spec": compiled.pipeline_spec}
        if compiled.platform_spec:
            specs["platform_spec"] = compiled.platform_spec
        return {
            "host": self.host,
            "namespace": self.namespace,
            "experiment": self.experiment,
            "run": {
                "display_name": self.name or compiled.name,
                "pipeline_spec": specs,
                "runtime_config": {"pipeline_root": compiled.root},
                "service_account": self.service_account,
            },
        }

    def submit(self, compiled: CompiledPipeline, *, seconds: float = _SEND_SECONDS) -> str:
        """Starts the run.

        Args:
            compiled: The pipeline.
            seconds: Time for the API to answer. Defaults to 60.

        Returns:
            The run's id.

        Raises:
            JobError: If there is no host, or the API rejects the run or has not answered.
        """
        if self.host is None:
            raise JobError("host=None: give the address of the API of Kubeflow Pipelines")
        # kfp prints its version at every start.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            import kfp
        import kfp_server_api
        import urllib3.exceptions

        def send() -> str:
            with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
                warnings.simplefilter("ignore", FutureWarning)
                client = kfp.Client(
                    host=self.host,
                    namespace=self.namespace or "kubeflow",
                    existing_token=self.token,
                )
                package = pathlib.Path(folder) / f"{compiled.name}.yaml"
                compiled.write(package)
                result = client.create_run_from_pipeline_package(
                    str(package),
                    run_name=self.name or compiled.name,
                    experiment_name=self.experiment,
                    namespace=self.namespace,
                    pipeline_root=compiled.root,
                    service_account=self.service_account,
                )
            return result.run_id

        where = f"host={self.host!r}: Kubeflow Pipelines"
        # A slow API, or one behind a proxy, may still accept the request.
        unknown = (
            f"{where} has not confirmed the run {self.name or compiled.name!r}: look for it there "
            "before you send it again"
        )
        try:
            with said_while_waiting(
                f"{where} to accept the run", change=f"The time limit is {seconds:g} s."
            ):
                return Deadline(seconds).ask(send, late=unknown)
        except (kfp_server_api.ApiException, urllib3.exceptions.HTTPError) as error:
            reason = " ".join(str(getattr(error, "body", None) or error).split())[:300]
            said = f"{where} did not accept the run" if _is_refusal(error) else unknown
            raise JobError(f"{said}: {reason}") from None


def _is_refusal(error: Exception) -> bool:
    """Returns whether an error proves that a run was not accepted: it was rejected or never sent."""
    status = getattr(error, "status", None)
    if status is not None:
        return bool(400 <= status < 500)
    return "NewConnectionError" in repr(error) or "ConnectTimeoutError" in repr(error)
