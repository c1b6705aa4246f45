"""What pods need in kfp-kubernetes' words: the same on both lines, whose versions of it know more and less."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from kfp import kubernetes
from kfp.kubernetes import kubernetes_executor_config_pb2

from tfx_tpu_trainer.components.clusters._pod_config import executor_config
from tfx_tpu_trainer.components.clusters._pods import PodSettings
from tfx_tpu_trainer.hardware import TpuSpec

# What later versions write beside what 1.0 does, about a name that a run could have as a parameter.
_OF_LATER_VERSIONS = {"secretNameParameter", "pvcNameParameter", "optional", "subPath"}

SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"env": {"A": "1"}}, {}),
    (
        {"secret_env": {"bucket-key": {"id": "KEY_ID", "text": "KEY"}}},
        {
            "secretAsEnv": [
                {
                    "secretName": "bucket-key",
                    "keyToEnv": [
                        {"secretKey": "id", "envVar": "KEY_ID"},
                        {"secretKey": "text", "envVar": "KEY"},
                    ],
                }
            ]
        },
    ),
    (
        {"secret_volumes": {"certs": "/certs"}},
        {"secretAsVolume": [{"secretName": "certs", "mountPath": "/certs"}]},
    ),
    (
        {"claims": {"a": "/a", "b": "/b"}},
        {
            "pvcMount": [
                {"constant": "a", "mountPath": "/a"},
                {"constant": "b", "mountPath": "/b"},
            ]
        },
    ),
    (
        {
            "tolerations": [
                {"key": "k", "value": "v", "effect": "NoSchedule"},
                {"operator": "Exists", "effect": "NoExecute", "toleration_seconds": 0},
            ]
        },
        {
            "tolerations": [
                {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
                {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": "0"},
            ]
        },
    ),
    (
        {"image_pull_secrets": ["a", "b"], "image_pull_policy": "Always"},
        {
            "imagePullSecret": [{"secretName": "a"}, {"secretName": "b"}],
            "imagePullPolicy": "Always",
        },
    ),
    (
        {"labels": {"example.com/a": "b", "c": ""}, "annotations": {"d": "any text"}},
        {
            "podMetadata": {
                "labels": {"example.com/a": "b", "c": ""},
                "annotations": {"d": "any text"},
            }
        },
    ),
    ({"labels": {"a": "b"}}, {"podMetadata": {"labels": {"a": "b"}}}),
]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without(each) for k, each in value.items() if k not in _OF_LATER_VERSIONS}
    return [_without(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("settings", "config"), SETTINGS)
def test_each_setting_is_written_as_kubeflow_reads_it(settings, config):
    written = executor_config(PodSettings(**settings))
    assert _without(written) == config
    # Version 1.0 knows fewer fields than backends do.
    json_format.ParseDict(
        written,
        kubernetes_executor_config_pb2.KubernetesExecutorConfig(),
        ignore_unknown_fields=not hasattr(kubernetes, "add_toleration"),
    )


def test_a_slices_nodes_stand_beside_the_rest():
    tpu = TpuSpec.parse("v5e:2x4")
    written = executor_config(PodSettings(labels={"a": "b"}, claims={"c": "/c"}), tpu)
    assert written["nodeSelector"] == {"labels": tpu.node_selector()}
    assert set(written) == {"nodeSelector", "podMetadata", "pvcMount"}


def test_the_taints_of_a_slices_nodes_are_tolerated_once_with_the_others():
    tpu = TpuSpec.parse("v5e:2x4", spot=True)
    (of_spot,) = tpu.tolerations()
    other = {"key": "team", "operator": "Exists"}
    for given in ([other], [other, of_spot]):
        written = executor_config(PodSettings(tolerations=given), tpu)
        assert _without(written)["tolerations"] == [other, of_spot]
