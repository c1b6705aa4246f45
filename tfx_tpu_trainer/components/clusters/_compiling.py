"""Compiles a TFX pipeline for Kubeflow Pipelines or Vertex AI, without a network."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from google.protobuf import json_format
from tfx import v1 as tfx

from tfx_tpu_trainer.components.clusters._checks import JobError, check_image
from tfx_tpu_trainer.components.clusters._compiled_pipeline import CompiledPipeline
from tfx_tpu_trainer.components.clusters._html_page import show_pages
from tfx_tpu_trainer.components.clusters._kubeflow_rules import (
    check_executors,
    check_spec_version,
    declare_types,
    do_without_drivers,
)
from tfx_tpu_trainer.components.clusters._platform_document import prepare_pods, set_variables
from tfx_tpu_trainer.components.clusters._pods import Pods
from tfx_tpu_trainer.components.clusters._task_options import TaskOptions, never_cache
from tfx_tpu_trainer.components.clusters._vertex_pods import check_vertex_pods, vertex_labels
from tfx_tpu_trainer.hardware import TpuSpec

Backend = Literal["kubeflow", "vertex"]


def compile_pipeline(
    pipeline: tfx.dsl.Pipeline,
    *,
    image: str,
    backend: Backend,
    spec_version: Literal["2.0", "2.1"] = "2.1",
    options: TaskOptions | None = None,
    pods: Pods | None = None,
) -> CompiledPipeline:
    """Compiles a pipeline.

    Args:
        pipeline: The pipeline; its TpuTrainers say which TPUs they need.
        image: Container image of the components, with a tag or a digest.
        backend: What it is for: `"kubeflow"` places trainers with a `tpu` on GKE's TPU nodes;
            `"vertex"` refuses them, since there a `VertexTpuTrainer` asks for TPUs.
        spec_version: Version of the pipeline specification; Kubeflow Pipelines runs 2.1 only.
        options: Retries and caching. Defaults to `None`: as the pipeline was declared.
        pods: What the pods need. Defaults to `None`: nothing. `pods.service_account` belongs to a run
            and not to what is compiled: `KubeflowRun` and `VertexRun` take it.

    Returns:
        The compiled pipeline.

    Raises:
        ValueError: If the image, a node or a slice does not fit, a user module would have to
            be read from or written to a bucket now, Vertex AI cannot give what pods need, or
            Kubeflow Pipelines cannot run a node (`_kubeflow_rules.py`).
    """
    pods = pods or Pods()
    if importlib.util.find_spec("kfp") is None:
        raise JobError(
            "kfp, which compiles pipelines, is not installed; install 'tfx-tpu-trainer[kubeflow]'"
        )
    from kfp.pipeline_spec import pipeline_spec_pb2

    check_image(image)
    if backend == "kubeflow":
        check_spec_version(spec_version)
    _check_modules(pipeline)
    tpus = pod_tpus(pipeline)
    if backend == "vertex" and tpus:
        node, tpu = next(iter(tpus.items()))
        raise ValueError(
            f"{node}: a task of Vertex AI Pipelines can't run on {tpu.tpu_slice.name}; use "
            "VertexTpuTrainerinstead of TpuTrainer; it starts a CustomJob on that slice."
        )
    trainers = _trainers(pipeline, pods)
    if backend == "vertex":
        has_job = any(
            "vertex_job" in getattr(node, "exec_properties", {}) for node in pipeline.components
        )
        check_vertex_pods(pods, custom_job=has_job)
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            default_image=image, use_pipeline_spec_2_1=spec_version == "2.1"
        )
    )
    job = runner.run(pipeline, write_out=False)
    show_pages(job["pipelineSpec"])
    platform_spec: dict[str, Any] = {}
    if backend == "kubeflow":
        check_executors(job["pipelineSpec"])
        declare_types(job["pipelineSpec"])
        platform_spec = prepare_pods(job["pipelineSpec"], tpus, pods=pods, trainers=trainers)
    else:
        set_variables(job["pipelineSpec"], pods, trainers=trainers)
        job = {**job, **vertex_labels(pods)}
    (options or TaskOptions()).apply(job["pipelineSpec"])
    if backend == "kubeflow":
        do_without_drivers(job["pipelineSpec"])
    for node in pipeline.components:
        if not getattr(node, "is_cacheable", True):
            never_cache(job["pipelineSpec"], node.id)
    # What was put in by hand above must still be what the schema allows.
    json_format.ParseDict(job["pipelineSpec"], pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(platform_spec, pipeline_spec_pb2.PlatformSpec())
    return CompiledPipeline(job=job, platform_spec=platform_spec)


def pod_tpus(pipeline: tfx.dsl.Pipeline) -> dict[str, TpuSpec]:
    """Returns the TPU slices on whose nodes pods must run, by node id."""
    found: dict[str, TpuSpec] = {}
    for node in pipeline.components:
        tpu = getattr(node, "pod_tpu", None)
        if tpu is not None:
            found[node.id] = tpu
    return found


def _trainers(pipeline: tfx.dsl.Pipeline, pods: Pods) -> tuple[str, ...]:
    """The ids of the nodes that train: each has a `pod_tpu`, if only `None`."""
    found = tuple(node.id for node in pipeline.components if hasattr(node, "pod_tpu"))
    if pods.trainer.given and not found:
        raise ValueError(
            f"pods.trainer sets {', '.join(pods.trainer.given)}, but the pipeline has no "
            "TpuTrainer: give it to pods.all, or leave it out"
        )
    return found


def _check_modules(pipeline: tfx.dsl.Pipeline) -> None:
    """Refuses module files that TFX would read from, or package into, a bucket: that needs the network."""
    root = str(pipeline.pipeline_info.pipeline_root)
    for node in pipeline.components:
        properties: dict[str, Any] = getattr(node, "exec_properties", {})
        module_file = properties.get("module_file")
        if not isinstance(module_file, str) or not module_file:
            continue
        where = "it is on a bucket" if "://" in module_file else f"TFX writes its wheel to {root!r}"
        if "://" in module_file + root:
            raise ValueError(
                f"{node.id}: module_file={module_file!r} would be packaged when the pipeline is "
                f"compiled, and {where}: that needs the network. Put the module into the image and "
                "name its import path instead (module='package.model'; for Transform "
                "preprocessing_fn='package.preprocessing.preprocessing_fn')."
            )
