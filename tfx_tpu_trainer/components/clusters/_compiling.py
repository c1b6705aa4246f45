"""Compiles a TFX pipeline for Kubeflow Pipelines or Vertex AI, without a network, and writes the result.

Kubeflow Pipelines' open-source backend can't run, or ignores, some of TFX's output. Its compiler
(`backend/src/v2/compiler/visitor.go`) ends with an error at an executor that is neither a container nor an importer.
Its driver and launcher never read a container's `lifecycle.preCacheCheck`, the hook in which TFX's file-based
ExampleGens read their files; Vertex AI runs it before it checks its cache. And they pass inputs to a task without the
types that TFX's container needs, which `pod_entry.py` fills in.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import yaml
from google.protobuf import json_format

from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.components.clusters._checks import JobError, check_image
from tfx_tpu_trainer.components.clusters._pipeline_spec import (
    TaskOptions,
    never_cache,
    prepare_pods,
    set_variables,
)
from tfx_tpu_trainer.components.clusters._pods import Pods, check_vertex_pods, vertex_labels
from tfx_tpu_trainer.hardware import TpuSpec

if TYPE_CHECKING:
    from tfx import v1 as tfx

Backend = Literal["kubeflow", "vertex"]

_FIRST_LINE = "# PIPELINE DEFINITION\n"
# Spans, dates and versions in the pattern of a split, as TFX's ExampleGens read them.
_SPANS = re.compile(r"\{(?:SPAN|VERSION)(?::\d+)?\}|\{(?:YYYY|MM|DD)\}")


def compile_pipeline(
    pipeline: tfx.dsl.Pipeline,
    *,
    image: str,
    backend: Backend,
    options: TaskOptions | None = None,
    pods: Pods | None = None,
) -> CompiledPipeline:
    """Compiles a pipeline.

    Args:
        pipeline: The pipeline; its TpuTrainers declare the TPUs that they need.
        image: Container image of the components, with a tag or a digest.
        backend: The target: `"kubeflow"` places trainers with a `tpu` on GKE's TPU nodes; `"vertex"` rejects them,
            since a `VertexTpuTrainer` requests TPUs there.
        options: Retries and caching. Defaults to `None`: as the pipeline was declared.
        pods: The pods' settings. Defaults to `None`, none. `pods.service_account` belongs to a run instead of to the
            compiled pipeline: `KubeflowRun` and `VertexRun` take it.

    Returns:
        The compiled pipeline.

    Raises:
        ValueError: If the image, a node or a slice does not fit, a user module would have to be read from or written to
            a bucket now, Vertex AI does not support the pods' settings, or Kubeflow Pipelines cannot run a node.
    """
    pods = pods or Pods()
    if importlib.util.find_spec("kfp") is None:
        raise JobError(
            "kfp, which compiles pipelines, is not installed; install 'tfx-tpu-trainer[kubeflow]'"
        )
    # Imported late: a wrong output is reported without TFX.
    from kfp.pipeline_spec import pipeline_spec_pb2
    from tfx import v1 as tfx

    from tfx_tpu_trainer.components.clusters._html_page import show_pages

    check_image(image)
    _check_modules(pipeline)
    # Node id -> the slice that its pods need.
    tpus: dict[str, TpuSpec] = {
        node.id: node.pod_tpu
        for node in pipeline.components
        if getattr(node, "pod_tpu", None) is not None
    }
    if backend == "vertex" and tpus:
        node, tpu = next(iter(tpus.items()))
        raise ValueError(
            f"{node}: a task of Vertex AI Pipelines can't run on {tpu.tpu_slice.name}; use "
            "VertexTpuTrainer instead of TpuTrainer; it starts a CustomJob on that slice."
        )
    trainers = _trainers(pipeline, pods)
    if backend == "vertex":
        has_job = any(
            "vertex_job" in getattr(node, "exec_properties", {}) for node in pipeline.components
        )
        check_vertex_pods(pods, custom_job=has_job)
    runner = tfx.orchestration.experimental.KubeflowV2DagRunner(
        config=tfx.orchestration.experimental.KubeflowV2DagRunnerConfig(
            # The driver of Kubeflow Pipelines can't read the parameters of 2.0; Vertex AI reads both.
            default_image=image,
            use_pipeline_spec_2_1=True,
        )
    )
    # TFX's own runner compiles; settings that it lacks are edited into its result. `never_cache` comes after the
    # options, since `caching=True` must not return stale results of nodes that read more than their inputs, such as an
    # ExampleGen on Kubeflow Pipelines.
    job = runner.run(pipeline, write_out=False)
    # A run of an uploaded file writes here, too.
    job["pipelineSpec"]["defaultPipelineRoot"] = job["runtimeConfig"]["gcsOutputDirectory"]
    show_pages(job["pipelineSpec"])
    platform_spec: dict[str, Any] = {}
    if backend == "kubeflow":
        _check_executors(job["pipelineSpec"])
        _declare_types(job["pipelineSpec"])
        platform_spec = prepare_pods(job["pipelineSpec"], tpus, pods=pods, trainers=trainers)
    else:
        set_variables(job["pipelineSpec"], pods, trainers=trainers)
        job = {**job, **vertex_labels(pods)}
    (options or TaskOptions()).apply(job["pipelineSpec"])
    if backend == "kubeflow":
        _do_without_drivers(job["pipelineSpec"])
    for node in pipeline.components:
        if not getattr(node, "is_cacheable", True):
            never_cache(job["pipelineSpec"], node.id)
    # Checks the edits against the schema.
    json_format.ParseDict(job["pipelineSpec"], pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(platform_spec, pipeline_spec_pb2.PlatformSpec())
    return CompiledPipeline(job=job, platform_spec=platform_spec)


def _trainers(pipeline: tfx.dsl.Pipeline, pods: Pods) -> tuple[str, ...]:
    """Returns the trainers' node ids: the nodes with an attribute `pod_tpu`, even `None`."""
    found = tuple(node.id for node in pipeline.components if hasattr(node, "pod_tpu"))
    if pods.trainer.given and not found:
        raise ValueError(
            f"pods.trainer sets {', '.join(pods.trainer.given)}, but the pipeline has no "
            "TpuTrainer: give it to pods.all, or leave it out"
        )
    return found


def _check_modules(pipeline: tfx.dsl.Pipeline) -> None:
    """Rejects module files in a bucket, which TFX would read or package over the network."""
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


def _check_executors(pipeline_spec: Mapping[str, Any]) -> None:
    """Rejects executors that Kubeflow Pipelines can't run, such as a Resolver."""
    for task, _, executor in _tasks(pipeline_spec):
        kinds = set(executor) - {"container", "importer"}
        if kinds:
            kind = kinds.pop()
            advice = (
                "find the baseline with a LastBlessedModel instead of a Resolver (in the "
                "pipelines of this repository: baseline=pointer)"
                if kind == "resolver"
                else "use a component that runs a container"
            )
            raise ValueError(
                f"{task}: Kubeflow Pipelines runs no task of kind {kind!r}, only containers and importers; "
                f"{advice}."
            )


def _declare_types(pipeline_spec: dict[str, Any]) -> None:
    """Starts TFX's containers with `pod_entry.py`, which gives them the types of their inputs."""
    from tfx_tpu_trainer.components._tfx_private import RUN_EXECUTOR
    from tfx_tpu_trainer.components.clusters._html_page import ENTRY_POINT

    for _, _, executor in _tasks(pipeline_spec):
        command = executor.get("container", {}).get("command", [])
        if command[-2:] == ["-m", RUN_EXECUTOR]:
            command[-1] = ENTRY_POINT


def _do_without_drivers(pipeline_spec: dict[str, Any]) -> None:
    """Makes ExampleGens work without a driver that reads their files beforehand.

    Their results never come from the cache, which does not notice changed files.
    """
    for task, definition, executor in _tasks(pipeline_spec):
        if "preCacheCheck" not in executor.get("container", {}).get("lifecycle", {}):
            continue
        given = definition.get("inputs", {}).get("parameters", {}).get("input_config", {})
        config = str(given.get("runtimeValue", {}).get("constant", ""))
        found = _SPANS.search(config)
        if found:
            raise ValueError(
                f"{task}: its pattern has {found[0]}, but Kubeflow Pipelines does not run the "
                "driver that finds the newest span or version: give a pattern without it, such as "
                "that of one span, or run the pipeline on Vertex AI."
            )
        never_cache(pipeline_spec, task)


def _tasks(
    pipeline_spec: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yields each task's name, definition and executor."""
    executors = pipeline_spec["deploymentSpec"]["executors"]
    components = pipeline_spec["components"]
    for task, definition in sorted(pipeline_spec["root"]["dag"]["tasks"].items()):
        label = components[definition["componentRef"]["name"]].get("executorLabel")
        yield task, definition, executors.get(label, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledPipeline:
    """A pipeline in the form that Kubeflow Pipelines and Vertex AI read.

    Attributes:
        job: A kfp-pipeline-spec `PipelineJob` in JSON form: `pipelineSpec`, `runtimeConfig`.
        platform_spec: A `PlatformSpec` in JSON form: each pod's requirements on its node. Empty if there are none.
    """

    job: Mapping[str, Any]
    platform_spec: Mapping[str, Any]

    @property
    def pipeline_spec(self) -> Mapping[str, Any]:
        """The `PipelineSpec` in JSON form."""
        return self.job["pipelineSpec"]

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline_spec["pipelineInfo"]["name"]

    @property
    def root(self) -> str:
        """Where the pipeline writes its artifacts."""
        return self.job["runtimeConfig"]["gcsOutputDirectory"]

    def to_text(self, form: Literal["yaml", "json"]) -> str:
        """Returns the text of a file.

        Args:
            form: `"yaml"` is for Kubeflow Pipelines: the `PipelineSpec`, and as a second document the `PlatformSpec`.
                `"json"` is for Vertex AI: the `PipelineJob`, with the `PlatformSpec` next to its `pipelineSpec`.
        """
        if form == "json":
            platform = {"platformSpec": self.platform_spec} if self.platform_spec else {}
            return json.dumps({**self.job, **platform}, indent=1, sort_keys=True) + "\n"
        documents = [self.pipeline_spec, *([self.platform_spec] if self.platform_spec else [])]
        text = yaml.dump_all(map(_plain, documents), Dumper=yaml.SafeDumper, sort_keys=True)
        return f"{_FIRST_LINE}# Name: {self.name}\n{text}"

    def write(self, path: str | pathlib.Path) -> None:
        """Writes a file, whole or not at all.

        Args:
            path: Its name; the ending decides the form: `.json`, `.yaml` or `.yml`.

        Raises:
            ValueError: If the ending is not one of these.
            OSError: If it can't be written.
        """
        text = self.to_text(_form_of(path))
        try:
            write_whole(path, text)
        except OSError as error:
            raise OSError(f"output {str(path)!r} can't be written ({error.strerror})") from None


def check_output(path: str | pathlib.Path) -> None:
    """Checks that a compiled pipeline can be written to a path, before compiling it.

    Args:
        path: Where it would be written; its ending, .yaml or .json, decides the form.

    Raises:
        ValueError: If the ending is not one of these, it can't be written, or the existing file is not a compiled
            pipeline.
    """
    _form_of(path)
    check_can_be_written("output", path)
    if os.path.isfile(path) and not _is_compiled(pathlib.Path(path).read_bytes()):
        raise ValueError(
            f"output {str(path)!r} exists and is not a compiled pipeline: give another name "
            "with --output"
        )


def _form_of(path: str | pathlib.Path) -> Literal["yaml", "json"]:
    """Returns the form that a file name's ending means."""
    ending = pathlib.Path(path).suffix
    if ending == ".json":
        return "json"
    if ending in (".yaml", ".yml"):
        return "yaml"
    raise ValueError(f"output {str(path)!r} ends with neither .yaml nor .json: rename it.")


def _is_compiled(content: bytes) -> bool:
    if not content or content.startswith(_FIRST_LINE.encode()):
        return True
    try:
        job = json.loads(content)
    except ValueError:
        return False
    return isinstance(job, dict) and "pipelineSpec" in job


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    # Repeated parts must be distinct objects, or YAML writes the second one as an alias.
    return json.loads(json.dumps(document))
