"""What pods need, in the words of kfp-kubernetes.

kfp-kubernetes writes into the `platform_config` of a `PipelineTask` of kfp's own language, and TFX compiles without
one: a `_Task` stands in its place, which has that attribute and nothing else.

The locked kfp-kubernetes of TFX 1.16 is 1.0.0, the last that goes with protobuf 3.20. It has no functions for
tolerations, pulling images, labels and annotations, which backends know since 2.2; for these the fields of
`KubernetesExecutorConfig` are written here, as later versions of kfp-kubernetes write them.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from tfx_tpu_trainer.components.clusters._pods import PodSettings, Toleration
from tfx_tpu_trainer.hardware import TpuSpec

_PLATFORM = "kubernetes"


@dataclasses.dataclass
class _Task:
    platform_config: dict[str, Any] = dataclasses.field(default_factory=dict)


def executor_config(pod: PodSettings, tpu: TpuSpec | None = None) -> dict[str, Any]:
    """Returns what a pod needs of Kubernetes, except for its environment variables."""
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
    if not hasattr(kubernetes, "add_toleration"):
        return {**task.platform_config.get(_PLATFORM, {}), **_later_fields(pod)}
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
    return dict(task.platform_config.get(_PLATFORM, {}))


def _later_fields(pod: PodSettings) -> dict[str, Any]:
    """The fields that kfp-kubernetes 1.0 has no functions for, in protobuf's JSON form."""
    metadata = {"labels": dict(pod.labels), "annotations": dict(pod.annotations)}
    tolerations = []
    for each in pod.tolerations:
        fields = each.model_dump(exclude_none=True, exclude={"toleration_seconds"})
        if each.toleration_seconds is not None:
            # A whole number of 64 bits is a text in that form.
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
    # kfp announces at every start that it is of version 2.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from kfp import kubernetes
    return kubernetes
