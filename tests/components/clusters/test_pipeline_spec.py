"""Tests the edits of a compiled pipeline, and its files."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp import kubernetes
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.bad_input import case, row
from tests.components.clusters.compiled import tiny, tiny_spec
from tfx_tpu_trainer.components.clusters._pipeline_spec import (
    TaskOptions,
    executor_config,
    prepare_pods,
    set_variables,
)
from tfx_tpu_trainer.components.clusters._pods import Pods, PodSettings
from tfx_tpu_trainer.hardware import TpuSpec, known_slices


def _container(spec):
    return spec["deploymentSpec"]["executors"]["exec-trainer"]["container"]


@pytest.mark.parametrize(
    "found",
    [each for each in known_slices() if each.hosts == 1 and each.gke_accelerator],
    ids=lambda each: each.name,
)
def test_every_slice_of_one_gke_host(found):
    spec = tiny_spec()
    platform = prepare_pods(spec, {"trainer": TpuSpec.parse(found.name, hosts=1)})
    message = json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    config = message.platforms["kubernetes"].deployment_spec.executors["exec-trainer"]
    selector = json_format.ParseDict(
        json_format.MessageToDict(config), kubernetes_executor_config_pb2.KubernetesExecutorConfig()
    ).node_selector
    assert selector.labels["cloud.google.com/gke-tpu-topology"] == found.topology
    assert selector.labels["cloud.google.com/gke-tpu-accelerator"] == found.gke_accelerator
    # The author's own limit stays.
    assert _container(spec)["resources"] == {
        "cpuLimit": 4.0,
        "accelerator": {"type": "google.com/tpu", "count": str(found.num_chips)},
    }
    json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())


def test_nothing_is_placed_without_a_slice():
    spec = tiny_spec()
    assert prepare_pods(spec, {}, pods=Pods(), trainers=["trainer"]) == {}
    assert spec == tiny_spec()


@pytest.mark.parametrize(
    ("node", "tpu"),
    [
        case("runners", f"`{tpu}` for the node `{node}`, compiled", *says, values=(node, tpu))
        for node, tpu, *says in (
            (
                "trainer",
                "v5e:4x4",
                "v5e:4x4 has 4 hosts",
                "Use v5e:1x1 or v5e:2x2 or v5e:2x4 there",
            ),
            ("trainer", "v2:2x2", "GKE has no nodes with v2:2x2: use v3 or newer"),
            (
                "latest",
                "v5e:2x4",
                "node 'latest' is not in the pipeline or runs no container: use one",
            ),
            ("Trainer", "v5e:2x4", "node 'Trainer' is not in the pipeline", "use one of trainer"),
        )
    ],
)
def test_what_cannot_be_placed_is_refused(node, tpu, refused):
    with refused(ValueError):
        prepare_pods(tiny_spec(), {node: TpuSpec.parse(tpu)})


def test_the_trainers_pod_has_its_own_and_what_all_have():
    spec = tiny_spec()
    spec["deploymentSpec"]["executors"]["exec-latest"] = {
        "container": {"image": "r.example/p:1", "env": [{"name": "A", "value": "0"}]}
    }
    pods = Pods.parse(
        all={"env": {"A": "1"}, "secret_env": {"s": {"k": "K"}}},
        trainer={"env": {"A": "2"}, "claims": {"c": "/c"}},
    )
    platform = prepare_pods(
        spec, {"trainer": TpuSpec.parse("v5e:2x2")}, pods=pods, trainers=["trainer"]
    )
    executors = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec()).deployment_spec[
        "executors"
    ]
    variables = {label: each["container"]["env"][0]["value"] for label, each in executors.items()}
    assert variables == {"exec-trainer": "2", "exec-latest": "1"}
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    configs = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert {label: set(config) for label, config in configs.items()} == {
        "exec-trainer": {"nodeSelector", "secretAsEnv", "pvcMount"},
        "exec-latest": {"secretAsEnv"},
    }


def test_a_resolver_has_no_pod_of_its_own():
    spec = tiny_spec()
    platform = prepare_pods(
        spec, {}, pods=Pods.parse(all={"env": {"A": "1"}, "labels": {"a": "b"}})
    )
    assert list(platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]) == [
        "exec-trainer"
    ]
    assert _container(spec)["env"] == [{"name": "A", "value": "1"}]
    assert spec["deploymentSpec"]["executors"]["exec-latest"] == {"resolver": {}}


def test_variables_alone_need_no_platform_document():
    spec = tiny_spec()
    pods = Pods.parse(trainer={"env": {"A": "1"}})
    set_variables(spec, pods, trainers=["trainer"])
    assert _container(spec)["env"] == [{"name": "A", "value": "1"}]
    assert prepare_pods(tiny_spec(), {}, pods=pods, trainers=["trainer"]) == {}


def test_options_of_tasks():
    spec = tiny_spec()
    TaskOptions(retries=2, node_caching={"trainer": False}, backoff_seconds=5).apply(spec)
    tasks = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec()).root.dag.tasks
    policy = tasks["trainer"].retry_policy
    assert policy.max_retry_count == 2
    assert (policy.backoff_duration.seconds, policy.backoff_max_duration.seconds) == (5, 3600)
    assert not tasks["trainer"].caching_options.enable_cache
    # A resolver runs no container that could be tried again.
    assert not tasks["latest"].HasField("retry_policy")
    spec = tiny_spec()
    TaskOptions().apply(spec)
    assert spec == tiny_spec()


@pytest.mark.parametrize(
    "options",
    [
        case("runners", f"`TaskOptions({name}={value!r})`", *says, values={name: value})
        for name, value, *says in (
            (
                "node_retries",
                {"latest": 1},
                "node 'latest' is not in the pipeline or runs no container",
            ),
            ("retries", -1, "TaskOptions retries=-1: Input should be greater than or equal to 0"),
            (
                "retries",
                10**9,
                "TaskOptions retries=1000000000: Input should be less than or equal to",
            ),
            (
                "backoff_seconds",
                0.5,
                "TaskOptions backoff_seconds=0.5: Input should be a valid integer",
            ),
            ("retry", 1, "TaskOptions retry=1: unknown attribute; leave it out"),
        )
    ],
)
def test_options_that_cannot_be_are_refused(options, refused):
    with refused(ValueError):
        TaskOptions(**options).apply(tiny_spec())


def test_a_yaml_file_has_a_document_for_each_spec(tmp_path):
    platform = {"platforms": {"kubernetes": {}}}
    tiny(platform).write(tmp_path / "new" / "tiny.yaml")
    text = (tmp_path / "new" / "tiny.yaml").read_text(encoding="utf-8")
    assert list(yaml.safe_load_all(text)) == [tiny_spec(), platform]
    tiny().write(tmp_path / "tiny.yml")
    assert yaml.safe_load((tmp_path / "tiny.yml").read_text(encoding="utf-8")) == tiny_spec()


def test_a_json_file_is_a_job(tmp_path):
    platform = {"platforms": {"kubernetes": {}}}
    tiny(platform).write(tmp_path / "tiny.json")
    document = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))
    assert document.pop("platformSpec") == platform
    message = json_format.ParseDict(document, pipeline_spec_pb2.PipelineJob())
    assert message.runtime_config.gcs_output_directory == "gs://bucket/tiny"


@row(
    "disks",
    "a folder in the place of the compiled pipeline's file",
    "output '",
    "tiny.json' can't be written (Is a directory; choose another path)",
)
def test_a_file_is_written_whole_or_not_at_all(tmp_path, refused):
    (tmp_path / "tiny.json").mkdir()
    with refused(OSError):
        tiny().write(tmp_path / "tiny.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


@row("runners", "an output `tiny.txt`", "tiny.txt' ends with neither .yaml nor .json: rename it")
def test_the_ending_says_the_form(tmp_path, refused):
    with refused(ValueError):
        tiny().write(tmp_path / "tiny.txt")
    assert not list(tmp_path.iterdir())


# Fields of later versions, in addition to 1.0's, for a name that could be a run's parameter.
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
        {"pvcMount": [{"constant": "a", "mountPath": "/a"}, {"constant": "b", "mountPath": "/b"}]},
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
