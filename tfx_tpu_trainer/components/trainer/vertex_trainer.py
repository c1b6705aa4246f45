"""VertexTpuTrainer: a TpuTrainer whose training is a CustomJob of Vertex AI."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

from tfx_tpu_trainer.components.clusters._vertex_job import custom_job
from tfx_tpu_trainer.components.trainer.tfx_private import ExecutionParameter, ExecutorClassSpec
from tfx_tpu_trainer.components.trainer.trainer import TpuTrainer, TpuTrainerSpec
from tfx_tpu_trainer.components.trainer.trainer_constructor import (
    PARAMETERS,
    Parameter,
    bind,
    declare,
)
from tfx_tpu_trainer.components.trainer.trainer_parameters import HARDWARE, About
from tfx_tpu_trainer.components.trainer.vertex_executor import VertexTpuTrainerExecutor
from tfx_tpu_trainer.hardware import TpuSpec


class VertexTpuTrainerSpec(TpuTrainerSpec):
    """Inputs, outputs and parameters of a VertexTpuTrainer."""

    PARAMETERS: ClassVar = {
        **TpuTrainerSpec.PARAMETERS,
        "vertex_job": ExecutionParameter(type=str, optional=True),
    }


class VertexTpuTrainer(TpuTrainer):
    """Trains as TpuTrainer does, in a Vertex AI CustomJob on a TPU slice.

    Use it on Vertex AI Pipelines, whose own tasks get no TPU slices, or anywhere else where the
    pod of the trainer should only start the job and wait for it. Inputs, parameters and outputs
    (`model`, `model_run`, `evaluation`, `page`) are TpuTrainer's; the job runs TpuTrainer's executor on the
    same artifacts, so their folders must be in a bucket that it can write.

    Examples:
        >>> from tfx import v1 as tfx
        >>> from tfx_tpu_trainer import VertexTpuTrainer
        >>> from tfx_tpu_trainer.components.clusters._vertex_job import VertexJob
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

    def __init__(self, **parameters: Any):
        """Declares a training.

        Args:
            **parameters: {parameters}

        Raises:
            TypeError: There is no such parameter, or one that has no default is missing.
            ValueError: A parameter doesn't fit, or Vertex AI has no such slice; names the value
                and the fix.
        """
        given = bind(VertexTpuTrainer.__init__, parameters)
        vertex_job, tpu = given.pop("vertex_job"), given["tpu"]
        super().__init__(**given)
        # The job itself is made when the trainer runs; here it shows whether it can be.
        custom_job(vertex_job, TpuSpec.read(tpu), display_name=self.id)
        stored = vertex_job.model_dump_json(exclude_defaults=True)
        self.spec.exec_properties["vertex_job"] = stored

    @property
    def pod_tpu(self) -> None:
        """None: its own pod only waits for the job."""
        return


declare(
    VertexTpuTrainer.__init__,
    (
        Parameter(
            name="vertex_job",
            about=About("Where the job runs, and as whom.", HARDWARE),
            given_as="VertexJob",
            default=inspect.Parameter.empty,
            stored_as=str,
        ),
        *(
            dataclasses.replace(each, default=inspect.Parameter.empty, given_as="TpuSpec | str")
            if each.name == "tpu"
            else each
            for each in PARAMETERS.values()
        ),
    ),
)
