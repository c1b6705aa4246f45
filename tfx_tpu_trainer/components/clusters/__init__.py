"""Compiles, checks and submits a pipeline as a job on Kubeflow Pipelines or Vertex AI.

`compile_pipeline` turns a pipeline into a `CompiledPipeline`; `KubeflowRun` and `VertexRun` send it. `TaskOptions`,
`Pods` and `VertexJob` are a config's settings of nodes, containers and CustomJobs. A task of Kubeflow Pipelines starts
with `python -m tfx_tpu_trainer.components.clusters.pod_entry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names, of_extra

# TFX itself is imported later, so a mistake on a command line is reported within a second.
with of_extra("tfx", for_what="tfx_tpu_trainer.components.clusters"):
    import pydantic as _pydantic  # noqa: F401

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.clusters._checks import (
        Deadline,
        JobError,
        check_bucket_paths,
        check_image,
        check_image_holds,
        check_project,
    )
    from tfx_tpu_trainer.components.clusters._compiling import (
        CompiledPipeline,
        check_output,
        compile_pipeline,
    )
    from tfx_tpu_trainer.components.clusters._html_page import RunPage
    from tfx_tpu_trainer.components.clusters._kubeflow_run import KubeflowRun
    from tfx_tpu_trainer.components.clusters._pipeline_spec import TaskOptions
    from tfx_tpu_trainer.components.clusters._pods import (
        Pods,
        PodSettings,
        Toleration,
        check_vertex_pods,
    )
    from tfx_tpu_trainer.components.clusters._vertex import VertexJob, VertexRun, custom_job

__all__ = [
    "CompiledPipeline",
    "Deadline",
    "JobError",
    "KubeflowRun",
    "PodSettings",
    "Pods",
    "RunPage",
    "TaskOptions",
    "Toleration",
    "VertexJob",
    "VertexRun",
    "check_bucket_paths",
    "check_image",
    "check_image_holds",
    "check_output",
    "check_project",
    "check_vertex_pods",
    "compile_pipeline",
    "custom_job",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "._checks": [
            "Deadline",
            "JobError",
            "check_bucket_paths",
            "check_image",
            "check_image_holds",
            "check_project",
        ],
        "._compiling": ["CompiledPipeline", "check_output", "compile_pipeline"],
        "._html_page": ["RunPage"],
        "._kubeflow_run": ["KubeflowRun"],
        "._pipeline_spec": ["TaskOptions"],
        "._pods": ["PodSettings", "Pods", "Toleration", "check_vertex_pods"],
        "._vertex": ["VertexJob", "VertexRun", "custom_job"],
    },
)
