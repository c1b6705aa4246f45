"""VertexTpuTrainerExecutor: starts a CustomJob of Vertex AI and waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx import v1 as tfx

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components.clusters._vertex_job import VertexJob, custom_job
from tfx_tpu_trainer.components.evaluation import (
    metric_properties,
    read_eval_metrics,
    set_properties,
)
from tfx_tpu_trainer.components.trainer.tfx_private import (
    BaseExecutor,
    artifact_utils,
    name_utils,
    start_cloud_training,
)
from tfx_tpu_trainer.components.trainer.trainer_executor import TpuTrainerExecutor
from tfx_tpu_trainer.hardware import TpuSpec


class VertexTpuTrainerExecutor(BaseExecutor):
    """Runs a TpuTrainer's executor in a CustomJob; belongs to `VertexTpuTrainer`."""

    def Do(
        self,
        input_dict: dict[str, list[tfx.dsl.Artifact]],
        output_dict: dict[str, list[tfx.dsl.Artifact]],
        exec_properties: Mapping[str, Any],
    ) -> None:
        """Runs one training.

        Args:
            input_dict: As TpuTrainer's.
            output_dict: As TpuTrainer's.
            exec_properties: As TpuTrainer's, and `vertex_job`.

        Raises:
            RuntimeError: The job failed or was cancelled, or left no metrics behind; names it.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        training = {key: value for key, value in exec_properties.items() if key != "vertex_job"}
        job = VertexJob.model_validate_json(exec_properties["vertex_job"])
        model = artifact_utils.get_single_instance(output_dict["model"])
        described = custom_job(
            job, TpuSpec.read(training["tpu"]), display_name=_display_name(model)
        )
        seconds = (
            f"{job.timeout_seconds} s"
            if job.timeout_seconds
            else "seven days, Vertex AI's own limit"
        )
        with said_while_waiting(
            f"the CustomJob {described['display_name']!r} in {job.region}; its log is in Vertex AI",
            change=f"It is stopped after {seconds} (VertexJob(timeout_seconds=...)).",
        ):
            start_cloud_training(
                input_dict,
                output_dict,
                training,
                executor_class_path=name_utils.get_full_name(TpuTrainerExecutor),
                # TFX takes the project out of the job's description again.
                job_args={**described, "project": job.project},
                job_id=None,
                enable_vertex=True,
                vertex_region=job.region,
            )
        # What the job's process wrote on its copies of the artifacts ended with it.
        metrics = read_eval_metrics(model.uri)
        if metrics is None:
            raise RuntimeError(
                f"the CustomJob {described['display_name']!r} has succeeded, but {model.uri} has "
                "no eval_metrics.json: its image must contain the version of tfx_tpu_trainer that "
                "compiled this pipeline"
            )
        properties = metric_properties(metrics)
        set_properties(model, properties)
        for evaluation in output_dict.get("evaluation", []):
            set_properties(evaluation, properties)


def _display_name(model: tfx.dsl.Artifact) -> str:
    """Names the job after the end of the model's folder, which names node and execution."""
    return "tpu-trainer-" + "-".join(model.uri.rstrip("/").split("/")[-3:])[-100:]
