"""kubeflow/manifests.py multi-worker: tasks that know each other and their own place."""

from __future__ import annotations

import copy
import json
import shlex
import socket
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner, Result

from tests.bad_input import case, row
from tests.kubeflow_folder.manifest_checks import (
    NEWEST,
    OLDEST,
    accepted,
    check_restricted,
    check_root_with_locked_memory,
    load,
)
from tfx_tpu_trainer.components.trainer.hosts import Role, read_host
from tfx_tpu_trainer.estimator._engine.sessions.preemption import grace_seconds
from tfx_tpu_trainer.estimator._task_environment import TaskEnvironment, read_task_environment

manifests = load("manifests")

COMMAND = ("python", "-m", "training", "--note", 'it\'s "this": {a}')


def _render(*words: str, command: tuple[str, ...] = COMMAND) -> list[dict[str, Any]]:
    result = CliRunner().invoke(
        manifests.main,
        ["multi-worker", "--name", "taxi", "--image", "images/train:1", *words, *command],
    )
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def _invoke(*words: str, command: tuple[str, ...] = COMMAND) -> Result:
    return CliRunner().invoke(manifests.main, ["multi-worker", *words, *command])


def _pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        job["metadata"]["name"]: job["spec"]["template"]["spec"]
        for job in documents
        if job["kind"] == "Job"
    }


def _environment(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


def _read(pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> TaskEnvironment:
    monkeypatch.setenv("TF_CONFIG", _environment(pod)["TF_CONFIG"])
    return read_task_environment()


@pytest.fixture(scope="module")
def cluster() -> list[dict[str, Any]]:
    return _render("--workers", "2", "--ps", "1", "--evaluator", "--memory", "8Gi")


def test_kubernetes_accepts_each_document(cluster) -> None:
    assert [document["kind"] for document in cluster] == ["Service", *["Job"] * 5]
    for document in cluster:
        accepted(document)


def test_tasks_run_as_a_user_without_rights_and_can_write_to_tmp_alone(cluster) -> None:
    for pod in [*_pods(cluster).values(), *_pods(_render("--tpu", "v5e:4x4")).values()]:
        (container,) = pod["containers"]
        check_restricted(pod, container)
        assert _environment(pod)["HOME"] == "/tmp"


def test_on_a_tpu_root_and_one_capability_can_be_had() -> None:
    documents = _render("--tpu", "v5e:4x4", "--tpu-as-root")
    for pod in _pods(documents).values():
        check_root_with_locked_memory(pod, pod["containers"][0])
    for document in documents:
        accepted(document)


def test_a_task_that_is_evicted_has_time_for_its_checkpoint(cluster) -> None:
    for pod in _pods(cluster).values():
        assert pod["terminationGracePeriodSeconds"] > grace_seconds()


def test_each_task_reads_its_place_from_tf_config(cluster, monkeypatch) -> None:
    places = {name: _read(pod, monkeypatch) for name, pod in _pods(cluster).items()}
    assert {name: (place.task_type, place.task_id) for name, place in places.items()} == {
        "taxi-chief-0": ("chief", 0),
        "taxi-worker-0": ("worker", 0),
        "taxi-worker-1": ("worker", 1),
        "taxi-ps-0": ("ps", 0),
        "taxi-evaluator-0": ("evaluator", 0),
    }
    assert [name for name, place in places.items() if place.is_chief] == ["taxi-chief-0"]
    for name, place in places.items():
        if place.task_type == "evaluator":
            assert not place.cluster_spec.jobs
            continue
        assert (place.num_worker_replicas, place.num_ps_replicas) == (3, 1)
        assert (
            place.cluster_spec.task_address(place.task_type, place.task_id) == f"{name}.taxi:2222"
        )


def test_the_executor_knows_its_role(cluster, monkeypatch) -> None:
    roles = []
    for pod in _pods(cluster).values():
        _read(pod, monkeypatch)
        roles.append(read_host().role)
    assert roles == [Role.CHIEF, Role.WORKER, Role.WORKER, Role.PS, Role.EVALUATOR]


def test_the_addresses_are_names_of_the_service(cluster, monkeypatch) -> None:
    service, *jobs = cluster
    assert service["spec"]["clusterIP"] == "None"
    pods = _pods(cluster)
    known = {f"{pod['hostname']}.{pod['subdomain']}:2222" for pod in pods.values()}
    addresses = _read(pods["taxi-chief-0"], monkeypatch).cluster_spec.as_dict().values()
    assert {address for job in addresses for address in job} < known
    for job in jobs:
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()
        assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


def test_each_task_runs_the_command_as_it_was_given(cluster) -> None:
    for pod in _pods(cluster).values():
        (container,) = pod["containers"]
        assert container["command"] == list(COMMAND)
        assert container["resources"]["limits"] == {"memory": "8Gi"}
        assert "nodeSelector" not in pod
        assert list(_environment(pod)) == ["TF_CONFIG", "HOME"]


def test_a_chief_alone_runs_locally(monkeypatch) -> None:
    (pod,) = _pods(_render()).values()
    place = _read(pod, monkeypatch)
    assert (place.is_chief, place.master, place.num_worker_replicas) == (True, "", 1)
    assert read_host().is_alone


@pytest.mark.parametrize(
    ("name", "accelerator", "topology", "chips", "hosts"),
    [
        ("v5e:4x4", "tpu-v5-lite-podslice", "4x4", "4", 4),
        ("v5p:2x2x2", "tpu-v5p-slice", "2x2x2", "4", 2),
        ("v6e:2x4", "tpu-v6e-slice", "2x4", "8", 1),
    ],
)
def test_the_tasks_are_the_hosts_of_a_slice(
    name, accelerator, topology, chips, hosts, monkeypatch
) -> None:
    documents = _render("--tpu", name)
    for document in documents:
        accepted(document)
    pods = _pods(documents)
    assert list(pods) == [f"taxi-host-{number}" for number in range(hosts)]
    roles = []
    for number, (pod_name, pod) in enumerate(pods.items()):
        assert pod["nodeSelector"] == {
            "cloud.google.com/gke-tpu-accelerator": accelerator,
            "cloud.google.com/gke-tpu-topology": topology,
        }
        assert pod["containers"][0]["resources"]["limits"] == {
            "memory": "16Gi",
            "google.com/tpu": chips,
        }
        environment = _environment(pod)
        assert environment["TPU_WORKER_HOSTNAMES"].split(",")[number] == f"{pod_name}.taxi"
        monkeypatch.delenv("TF_CONFIG", raising=False)
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        roles.append(read_host().role)
    assert roles == [Role.CHIEF, *[Role.TPU_HOST] * (hosts - 1)]


def test_a_spec_as_json_brings_its_image_and_how_it_is_had() -> None:
    spec = {"slice_name": "v5e:2x2", "spot": True, "runtime_image": "images/tpu:3"}
    (pod,) = _pods(_render("--tpu", json.dumps(spec))).values()
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["tolerations"] == [
        {
            "key": "cloud.google.com/gke-spot",
            "operator": "Equal",
            "value": "true",
            "effect": "NoSchedule",
        }
    ]
    assert "tolerations" not in _pods(_render("--tpu", "v5e:2x2"))["taxi-host-0"]
    assert pod["containers"][0]["image"] == "images/tpu:3"


def refusal(words, *says):
    return case(
        "runners", f"`manifests.py multi-worker {shlex.join(words)}`", *says, values=(words,)
    )


@pytest.mark.parametrize(
    "words",
    [
        refusal(("--tpu", "v5e:4x4", "--workers", "1"), "leave workers, ps and evaluator out"),
        refusal(("--tpu-as-root",), "tpu_as_root is for containers on TPU hosts", "leave it out"),
        refusal(("--workers", "2"), "workers=2 and no ps", "set ps to 1 or more"),
        refusal(("--workers", "-1"), "'--workers': -1 is not in the range 0<=x<=10000"),
        refusal(("--ps", "99999999"), "'--ps': 99999999 is not in the range 0<=x<=10000"),
        refusal(("--tpu", "v5e:3x3"), "v5e has no slice '3x3'; nearest: v5e:2x4"),
        refusal(("--tpu", "v2:2x2"), "GKE has no nodes with v2:2x2: use v3 or newer"),
        refusal(("--tpu", ""), "TpuSpec slice_name='': give a name such as 'v5e:2x4'"),
        refusal(("--image", ""), "no image was given; name one with --image"),
        refusal(("--image", "images/train"), "image='images/train' has no tag"),
        refusal(
            ("--name", "Taxi_1"),
            "name='Taxi_1' is not a valid Kubernetes name: use up to 48 lower-case",
        ),
        refusal(
            ("--namespace", "a b"), "namespace='a b' is not a valid Kubernetes namespace: use up to"
        ),
        refusal(
            ("--cpu", "abc"), "cpu='abc' is not a number of CPUs; give one such as '4' or '500m'"
        ),
        refusal(("--cpu", "0"), "cpu='0' is not a number of CPUs; give one such as '4' or '500m'"),
        refusal(
            ("--memory", "--"), "memory='--' is not an amount of memory; give bytes, or a number"
        ),
        refusal(("--memory", "16GB"), "memory='16GB' is not an amount of memory", "such as '16Gi'"),
        refusal(("--memory", "0Gi"), "memory='0Gi' is not an amount of memory", "such as '16Gi'"),
    ],
)
def test_what_does_not_fit_is_one_line(words, refused) -> None:
    refused.output(_invoke("--name", "taxi", "--image", "images/train:1", *words))


@pytest.mark.parametrize("memory", ["16Gi", "1500000000", "1.5G", "512Mi"])
@pytest.mark.parametrize("cpu", ["4", "0.5", "500m"])
def test_kubernetes_quantities_are_taken(cpu, memory) -> None:
    (pod,) = _pods(_render("--cpu", cpu, "--memory", memory)).values()
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": cpu, "memory": memory}


@row(
    "runners",
    "`manifests.py multi-worker` without a command",
    "no command was given; end the line with one, such as python -m your.training",
)
def test_no_command_is_an_error(refused) -> None:
    refused.output(_invoke("--name", "taxi", "--image", "i:1", command=()))


def test_names_leave_room_for_the_tasks() -> None:
    longest = manifests.TrainingCluster(
        name="a" * 48, image="i:1", command=("true",), workers=100, ps=1, evaluator=True
    )
    assert all(len(task.pod_name) <= 63 for task in longest.tasks())
    assert socket.IPPORT_RESERVED < manifests.PORT


JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a"},
    "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "r/a:1"}]}}},
}


def _job(**of_pod: Any) -> dict[str, Any]:
    made = copy.deepcopy(JOB)
    made["spec"]["template"]["spec"].update(of_pod)
    return made


def test_a_valid_manifest_is_accepted():
    assert accepted(JOB).metadata.name == "a"


@pytest.mark.parametrize(
    "manifest",
    [
        _job(restartpolicy="Never"),
        _job(tolerations=[{"key": "a", "seconds": 1}]),
        _job(containers=[{"image": "r/a:1"}]),
    ],
)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_schemas_alone_refuse_what_is_misspelt_or_missing(manifest, version):
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises((AssertionError, ValueError, kubernetes_validate.ValidationError)):
        accepted(manifest)


def test_a_field_that_the_oldest_has_not_is_refused_by_it():
    # Sidecars' restart policy is of 1.28.
    manifest = _job(initContainers=[{"name": "b", "image": "r/b:1", "restartPolicy": "Always"}])
    assert kubernetes_validate.validate(manifest, NEWEST, strict=True) == NEWEST
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolicy"):
        kubernetes_validate.validate(manifest, OLDEST, strict=True)
