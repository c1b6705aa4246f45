"""What pods ask for: chips, an image, environment variables, and the platform document with the rest.

Chips could be asked for with TFX's `with_platform_config` as well, but TFX's local runner refuses a
component that has it, and the same pipeline shall run there; the platform document TFX does not write at all.

Kubeflow Pipelines reads the platform document as the second one of a YAML file. Its shape is that of
kfp-kubernetes' `KubernetesExecutorConfig`, one for each executor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tfx_tpu_trainer.components.clusters._checks import check_image
from tfx_tpu_trainer.components.clusters._pod_config import executor_config
from tfx_tpu_trainer.components.clusters._pods import Pods
from tfx_tpu_trainer.hardware import TpuSpec, known_slices

PLATFORM = "kubernetes"


def prepare_pods(
    pipeline_spec: dict[str, Any],
    tpus: Mapping[str, TpuSpec],
    *,
    pods: Pods | None = None,
    trainers: Collection[str] = (),
) -> dict[str, Any]:
    """Lets pods have what they need, those with a slice the chips of one host and an image of their own."""
    for node, tpu in tpus.items():
        _ask_for_chips(pipeline_spec, node, tpu)
    pods = pods or Pods()
    set_variables(pipeline_spec, pods, trainers=trainers)
    executors: dict[str, Any] = {}
    for node in container_nodes(pipeline_spec):
        pod = pods.of_trainer() if node in trainers else pods.all
        if pod.given or node in tpus:
            config = executor_config(pod, tpus.get(node))
            if config:
                executors[executor_label(pipeline_spec, node)] = config
    if not executors:
        return {}
    return {"platforms": {PLATFORM: {"deploymentSpec": {"executors": executors}}}}


def set_variables(
    pipeline_spec: dict[str, Any], pods: Pods, *, trainers: Collection[str] = ()
) -> None:
    """Puts environment variables into the containers of a compiled pipeline."""
    executors = pipeline_spec["deploymentSpec"]["executors"]
    for node in container_nodes(pipeline_spec):
        variables = (pods.of_trainer() if node in trainers else pods.all).env
        if variables:
            container = executors[executor_label(pipeline_spec, node)]["container"]
            found = {each["name"]: each["value"] for each in container.get("env", [])}
            container["env"] = [
                {"name": name, "value": value} for name, value in {**found, **variables}.items()
            ]


def executor_label(pipeline_spec: Mapping[str, Any], node: str) -> str:
    """Returns the key of a node's executor."""
    tasks = pipeline_spec["root"]["dag"]["tasks"]
    containers = container_nodes(pipeline_spec)
    if node not in containers:
        raise ValueError(
            f"node {node!r} is not in the pipeline or runs no container: use one of "
            f"{', '.join(containers)}."
        )
    return pipeline_spec["components"][tasks[node]["componentRef"]["name"]]["executorLabel"]


def container_nodes(pipeline_spec: Mapping[str, Any]) -> list[str]:
    """Lists the nodes that run containers: all but importers and resolvers."""
    executors = pipeline_spec["deploymentSpec"]["executors"]
    components = pipeline_spec["components"]
    return sorted(
        node
        for node, task in pipeline_spec["root"]["dag"]["tasks"].items()
        if "container" in executors[components[task["componentRef"]["name"]]["executorLabel"]]
    )


def _ask_for_chips(pipeline_spec: dict[str, Any], node: str, tpu: TpuSpec) -> None:
    label = executor_label(pipeline_spec, node)
    container = pipeline_spec["deploymentSpec"]["executors"][label]["container"]
    _check_one_host(node, tpu)
    # GKE's nodes have labels to be found by; where it has no such slice, this says so.
    tpu.node_selector()
    ((kind, count),) = tpu.resource_limits().items()
    # Beside limits of CPU and memory that the pipeline's author may have set.
    limits = container.setdefault("resources", {})
    limits["accelerator"] = {"type": kind, "count": str(count)}
    if tpu.runtime_image:
        check_image(tpu.runtime_image, setting="tpu.runtime_image")
        container["image"] = tpu.runtime_image


def _check_one_host(node: str, tpu: TpuSpec) -> None:
    found = tpu.tpu_slice
    if found.hosts > 1:
        single = [
            each.name
            for each in known_slices()
            if each.chip == found.chip and each.hosts == 1 and each.gke_accelerator
        ]
        raise ValueError(
            f"{node}: {found.name} has {found.hosts} hosts, but a task of Kubeflow Pipelines is "
            f"one pod on one host. Use {' or '.join(single) or 'another generation'} there, or "
            "train on Vertex AI with VertexTpuTrainer, which requests the whole slice."
        )
