"""Defines VertexTpuTrainer, a TpuTrainer whose training is a CustomJob on Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tfx import v1 as tfx

from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer.components._tfx_private import (
    BaseExecutor,
    ExecutionParameter,
    ExecutorClassSpec,
    artifact_utils,
    name_utils,
    start_cloud_training,
)
from tfx_tpu_trainer.components.clusters import VertexJob, custom_job
from tfx_tpu_trainer.components.evaluation import (
    metric_properties,
    read_eval_metrics,
    set_properties,
)
from tfx_tpu_trainer.components.trainer.trainer import TpuTrainer, TpuTrainerSpec
from tfx_tpu_trainer.components.trainer.trainer_executor import TpuTrainerExecutor
from tfx_tpu_trainer.hardware import TpuSpec


class VertexTpuTrainerExecutor(BaseExecutor):
    """Runs a TpuTrainer's executor in a CustomJob."""

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
            RuntimeError: If the job failed or was cancelled, or left no metrics behind; names it.
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
                # TFX takes the project from the job's description, and removes it there.
                job_args={**described, "project": job.project},
                job_id=None,
                enable_vertex=True,
                vertex_region=job.region,
            )
        # What the job wrote into its copies of the artifacts' properties is lost with it.
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
    """Names the job after the last parts of the model's folder: node and execution."""
    return "tpu-trainer-" + "-".join(model.uri.rstrip("/").split("/")[-3:])[-100:]


class VertexTpuTrainerSpec(TpuTrainerSpec):
    """Inputs, outputs and parameters of a VertexTpuTrainer."""

    PARAMETERS: ClassVar = {
        **TpuTrainerSpec.PARAMETERS,
        "vertex_job": ExecutionParameter(type=str, optional=True),
    }


class VertexTpuTrainer(TpuTrainer):
    """Trains as TpuTrainer does, in a Vertex AI CustomJob on a TPU slice.

    Use it on Vertex AI Pipelines, whose own tasks get no TPU slices, or elsewhere if the trainer's pod should only
    start the job and wait for it. Inputs, parameters and outputs (`model`, `model_run`, `evaluation`, `page`) are
    TpuTrainer's; the job runs TpuTrainer's executor on the same artifacts, so their folders must be in a bucket that it
    can write.

    Examples:
        >>> from tfx import v1 as tfx
        >>> from tfx_tpu_trainer import VertexTpuTrainer
        >>> from tfx_tpu_trainer.components.clusters import VertexJob
        >>> artifacts = tfx.types.standard_artifacts
        >>> trainer = VertexTpuTrainer(
        ...     examples=tfx.dsl.Channel(type=artifacts.Examples),
        ...     transform_graph=tfx.dsl.Channel(type=artifacts.TransformGraph),
        ...     schema=tfx.dsl.Channel(type=artifacts.Schema),
        ...     module="pipelines.taxi.model",
        ...     train_args=tfx.proto.TrainArgs(num_steps=1000),
        ...     train_batch_size=256,
        ...     tpu="v5e:2x4",
        ...     vertex_job=VertexJob(
        ...         project="our-models-17", region="us-central1", image="gcr.io/our-models-17/taxi:1"
        ...     ),
        ... )
        >>> sorted(trainer.outputs)
        ['evaluation', 'model', 'model_run', 'page']
    """

    SPEC_CLASS = VertexTpuTrainerSpec
    EXECUTOR_SPEC = ExecutorClassSpec(VertexTpuTrainerExecutor)

    def __init__(self, *, vertex_job: VertexJob, tpu: TpuSpec | str, **parameters: Any):
        """Declares a training.

        Args:
            vertex_job: Where the job runs, and under which account.
            tpu: The TPU slice to train on, a TpuSpec or a name ("v5e:2x4"), that Vertex AI offers.
            **parameters: All other arguments of `TpuTrainer`, by the same names.

        Raises:
            TypeError: If a parameter does not exist, or one without a default is missing.
            ValueError: If a parameter is invalid, or Vertex AI lacks the slice; names the value and the fix.
        """
        super().__init__(tpu=tpu, **parameters)
        # The trainer makes the job when it runs; here it is only checked.
        custom_job(vertex_job, TpuSpec.read(tpu), display_name=self.id)
        stored = vertex_job.model_dump_json(exclude_defaults=True)
        self.spec.exec_properties["vertex_job"] = stored

    @property
    def pod_tpu(self) -> None:
        """None: its own pod only waits for the job."""
        return
