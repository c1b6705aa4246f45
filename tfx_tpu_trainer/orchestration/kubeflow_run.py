"""A run on Kubeflow Pipelines: what is sent, and the sending."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import warnings
from typing import Any

from tfx_tpu_trainer.orchestration.checks import JobError
from tfx_tpu_trainer.orchestration.compiled_pipeline import CompiledPipeline
from tfx_tpu_trainer.orchestration.online_checks import Deadline

_SEND_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubeflowRun:
    """A run of a compiled pipeline.

    Attributes:
        host: Address of the API of Kubeflow Pipelines 2.
        namespace: Namespace of the run, in a multi-user installation. Defaults to `None`.
        experiment: Experiment that it belongs to. Defaults to `"Default"`.
        name: Its name. Defaults to `None`: the pipeline's.
        service_account: Kubernetes service account of its pods. Defaults to `None`.
        token: Bearer token for the API. Defaults to `None`.
    """

    host: str
    namespace: str | None = None
    experiment: str = "Default"
    name: str | None = None
    service_account: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)

    def describe(self, compiled: CompiledPipeline) -> dict[str, Any]:
        """Returns what `submit` sends, in JSON form, without sending it."""
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

    def submit(self, compiled: CompiledPipeline) -> str:
        """Starts the run.

        Args:
            compiled: The pipeline.

        Returns:
            The run's id.

        Raises:
            JobError: If the API does not take it.
        """
        # kfp announces at every start that it is of version 2.
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

        late = f"host={self.host!r}: Kubeflow Pipelines did not take the run"
        try:
            return Deadline(_SEND_SECONDS).ask(send, late=late)
        except (kfp_server_api.ApiException, urllib3.exceptions.HTTPError) as error:
            reason = getattr(error, "body", None) or str(error)
            raise JobError(f"{late}: {' '.join(str(reason).split())[:300]}") from None
