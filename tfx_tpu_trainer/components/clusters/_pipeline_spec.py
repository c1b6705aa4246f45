"""Edits a compiled PipelineSpec: chips, images, variables, retries, caching and the platform document.

Chips could also be requested with TFX's `with_platform_config`, but TFX's local runner, on which the same pipeline must
run, rejects such components. TFX never writes the platform document, which Kubeflow Pipelines reads as the second
document of a YAML file. It has a `KubernetesExecutorConfig` of kfp-kubernetes for each executor.

kfp-kubernetes writes into the `platform_config` of a kfp `PipelineTask`, which TFX does not make; a `_Task` replaces
it. The locked kfp-kubernetes of TFX 1.16 is 1.0.0, the last one for protobuf 3.20. It has no functions for tolerations,
image pulls, labels and annotations, which backends know since 2.2; this module writes these fields of
`KubernetesExecutorConfig` like later versions of kfp-kubernetes.
"""

from __future__ import annotations

import dataclasses
import typing
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import pydantic

from tfx_tpu_trainer.components.clusters._checks import (
    Checked,
    JobError,
    check_image,
    first_problem,
)
from tfx_tpu_trainer.components.clusters._pods import Pods, PodSettings, Toleration
from tfx_tpu_trainer.hardware import TpuSpec, known_slices

PLATFORM = "kubernetes"
MOST_RETRIES = 1_000
_LONGEST_BACKOFF = 86_400
"""The longest pause between two tries of a task, in seconds."""

Retries = typing.Annotated[int, pydantic.Field(ge=0, le=MOST_RETRIES)]


def prepare_pods(
    pipeline_spec: dict[str, Any],
    tpus: Mapping[str, TpuSpec],
    *,
    pods: Pods | None = None,
    trainers: Collection[str] = (),
) -> dict[str, Any]:
    """Gives pods their settings; pods with a slice get one host's chips and their own image."""
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
    """Sets environment variables of a compiled pipeline's containers."""
    # Vertex AI does not read the platform document; both backends read a container's `env`.
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
    # task -> component -> executor.
    tasks = pipeline_spec["root"]["dag"]["tasks"]
    containers = container_nodes(pipeline_spec)
    if node not in containers:
        raise ValueError(
            f"node {node!r} is not in the pipeline or runs no container: use one of "
            f"{', '.join(containers)}."
        )
    return pipeline_spec["components"][tasks[node]["componentRef"]["name"]]["executorLabel"]


def container_nodes(pipeline_spec: Mapping[str, Any]) -> list[str]:
    """Lists the nodes that run containers: all except importers and resolvers."""
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
    # Raises if GKE lacks the slice, whose nodes are selected by label.
    tpu.node_selector()
    ((kind, count),) = tpu.resource_limits().items()
    # Keeps limits of CPU and memory set by the pipeline's author.
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


@dataclasses.dataclass
class _Task:
    platform_config: dict[str, Any] = dataclasses.field(default_factory=dict)


def executor_config(pod: PodSettings, tpu: TpuSpec | None = None) -> dict[str, Any]:
    """Returns a pod's Kubernetes settings, except its environment variables."""
    kubernetes = _kfp_kubernetes()
    task: Any = _Task()
    if tpu:
        of_nodes = tuple(Toleration.model_validate(each) for each in tpu.tolerations())
        tolerations = tuple(dict.fromkeys([*pod.tolerations, *of_nodes]))
        pod = pod.model_copy(update={"tolerations": tolerations})
    for key, value in (tpu.node_selector() if tpu else {}).items():
        kubernetes.add_node_selector(task, key, value)
    for secret, keys in pod.secret_env.items():
        kubernetes.use_secret_as_env(task, secret, dict(keys))
    for secret, path in pod.secret_volumes.items():
        kubernetes.use_secret_as_volume(task, secret, path)
    for claim, path in pod.claims.items():
        kubernetes.mount_pvc(task, claim, path)
    # kfp-kubernetes 1.0.0 lacks this function.
    if not hasattr(kubernetes, "add_toleration"):
        return {**task.platform_config.get(PLATFORM, {}), **_later_fields(pod)}
    for each in pod.tolerations:
        kubernetes.add_toleration(task, **each.model_dump(exclude_none=True))
    if pod.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(pod.image_pull_secrets))
    if pod.image_pull_policy:
        kubernetes.set_image_pull_policy(task, pod.image_pull_policy)
    for key, value in pod.labels.items():
        kubernetes.add_pod_label(task, key, value)
    for key, value in pod.annotations.items():
        kubernetes.add_pod_annotation(task, key, value)
    return dict(task.platform_config.get(PLATFORM, {}))


def _later_fields(pod: PodSettings) -> dict[str, Any]:
    """Returns the fields that kfp-kubernetes 1.0 has no functions for, as protobuf JSON."""
    metadata = {"labels": dict(pod.labels), "annotations": dict(pod.annotations)}
    tolerations = []
    for each in pod.tolerations:
        fields = each.model_dump(exclude_none=True, exclude={"toleration_seconds"})
        if each.toleration_seconds is not None:
            # Protobuf JSON writes 64-bit integers as strings.
            fields["tolerationSeconds"] = str(each.toleration_seconds)
        tolerations.append(fields)
    fields = {
        "tolerations": tolerations,
        "imagePullSecret": [{"secretName": name} for name in pod.image_pull_secrets],
        "imagePullPolicy": pod.image_pull_policy,
        "podMetadata": {key: value for key, value in metadata.items() if value},
    }
    return {key: value for key, value in fields.items() if value}


def _kfp_kubernetes() -> Any:
    # kfp prints its version at every start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from kfp import kubernetes
    return kubernetes


class TaskOptions(Checked):
    """Retries and caching of a pipeline's tasks.

    Example:
    ```python
    TaskOptions(retries=1, node_retries={"TpuTrainer": 5}, node_caching={"Pusher": False})
    ```

    Attributes:
        retries: How often a failed task is tried again. Defaults to 0.
        node_retries: The same for single nodes, by their ids.
        backoff_seconds: Seconds before the first retry; each further one waits twice as long, up to an hour. Defaults
            to 60.
        caching: Whether results may come from the cache. Defaults to `None`: as the pipeline was
            declared.
        node_caching: The same for single nodes, by their ids.
    """

    retries: Retries = 0
    node_retries: Mapping[str, Retries] = {}
    backoff_seconds: typing.Annotated[int, pydantic.Field(ge=0, le=_LONGEST_BACKOFF)] = 60
    caching: bool | None = None
    node_caching: Mapping[str, bool] = {}

    def __init__(self, **values: Any) -> None:
        """Makes the options.

        Args:
            **values: The attributes.

        Raises:
            JobError: If a value is invalid.
        """
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise JobError(first_problem(error, "TaskOptions")) from None

    def apply(self, pipeline_spec: dict[str, Any]) -> None:
        """Applies the options to a compiled pipeline.

        Args:
            pipeline_spec: A `PipelineSpec` in JSON form.

        Raises:
            ValueError: If an option names a node that does not exist.
        """
        for node in (*self.node_retries, *self.node_caching):
            executor_label(pipeline_spec, node)
        tasks = pipeline_spec["root"]["dag"]["tasks"]
        for node in container_nodes(pipeline_spec):
            retries = self.node_retries.get(node, self.retries)
            if retries:
                tasks[node]["retryPolicy"] = {
                    "maxRetryCount": retries,
                    "backoffDuration": f"{self.backoff_seconds}s",
                    "backoffFactor": 2.0,
                    "backoffMaxDuration": f"{max(3600, self.backoff_seconds)}s",
                }
            caching = self.node_caching.get(node, self.caching)
            if caching is not None:
                tasks[node]["cachingOptions"] = {"enableCache": caching}


def never_cache(pipeline_spec: dict[str, Any], node: str) -> None:
    """Disables the cache of a node whose result depends on more than its inputs."""
    pipeline_spec["root"]["dag"]["tasks"][node]["cachingOptions"] = {"enableCache": False}
