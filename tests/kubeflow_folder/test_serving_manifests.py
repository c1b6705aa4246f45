"""kubeflow/manifests.py serving: TensorFlow Serving on CPU and TPU hosts, and KServe."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import tensorflow as tf
import yaml
from click.testing import CliRunner

from tests.bad_input import case
from tests.kubeflow_folder.manifest_checks import (
    accepted,
    check_restricted,
    check_root_with_locked_memory,
    load,
)
from tfx_tpu_trainer.serving._server_config import CPU_BATCHING, TPU_BATCHING

manifests = load("manifests")

MODEL = "gs://bucket/taxi/serving"
ON_TPU = ("--tpu", "v5e:2x2", "--image", "images/tpu-serving:1")


def _invoke(*words: str) -> Any:
    command = ["serving", "--name", "taxi", "--model", MODEL, *words]
    return CliRunner().invoke(manifests.main, command)


def _render(*words: str) -> dict[str, dict[str, Any]]:
    result = _invoke(*words)
    assert result.exit_code == 0, result.output
    return {document["kind"]: document for document in yaml.safe_load_all(result.output)}


def _pod(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return documents["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("words", [(), ON_TPU, ("--no-batching", "--replicas", "3")])
def test_kubernetes_accepts_each_document(words) -> None:
    documents = _render(*words)
    assert list(documents) == ["ConfigMap", "Deployment", "Service"]
    for document in documents.values():
        accepted(document)


@pytest.mark.parametrize("words", [(), ON_TPU])
def test_a_server_runs_as_a_user_without_rights_and_can_write_to_tmp_alone(words) -> None:
    pod = _pod(_render(*words))
    check_restricted(pod, *pod["containers"])
    predictor = _render(*words, "--kserve")["InferenceService"]["spec"]["predictor"]
    check_restricted(predictor, predictor["model"])


def test_on_a_tpu_root_and_one_capability_can_be_had() -> None:
    pod = _pod(_render(*ON_TPU, "--tpu-as-root"))
    check_root_with_locked_memory(pod, *pod["containers"])


def test_a_cpu_server_takes_the_cpus_metagraph() -> None:
    documents = _render("--line", "1.16")
    pod = _pod(documents)
    (container,) = pod["containers"]
    assert container["image"] == "tensorflow/serving:2.16.1"
    assert container["args"] == [
        "--port=8500",
        "--rest_api_port=8501",
        "--model_name=taxi",
        f"--model_base_path={MODEL}",
        "--enable_model_warmup=true",
        "--enable_batching=true",
        "--batching_parameters_file=/config/batching_parameters.txt",
    ]
    assert documents["ConfigMap"]["data"]["batching_parameters.txt"] == CPU_BATCHING.to_text()
    assert "nodeSelector" not in pod
    assert list(container["resources"]["limits"]) == ["memory"]


def test_a_tpu_server_takes_the_tpus_metagraph_on_a_tpus_node() -> None:
    documents = _render(*ON_TPU)
    pod = _pod(documents)
    (container,) = pod["containers"]
    assert container["image"] == "images/tpu-serving:1"
    assert "--saved_model_tags=serve,tpu" in container["args"]
    assert container["resources"]["limits"]["google.com/tpu"] == "4"
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    assert documents["ConfigMap"]["data"]["batching_parameters.txt"] == TPU_BATCHING.to_text()


def test_the_batching_file_is_where_the_server_looks() -> None:
    documents = _render()
    pod = _pod(documents)
    (container,), (volume, _) = pod["containers"], pod["volumes"]
    (mount, _) = container["volumeMounts"]
    assert volume["name"] == mount["name"]
    assert volume["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"]
    (name,) = documents["ConfigMap"]["data"]
    assert f"--batching_parameters_file={mount['mountPath']}/{name}" in container["args"]


def test_the_service_finds_the_pods_and_their_ports() -> None:
    documents = _render()
    service, deployment = documents["Service"]["spec"], documents["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert deployment["selector"]["matchLabels"].items() <= labels.items()
    (container,) = _pod(documents)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == ports
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/v1/models/taxi", "port": "rest"}


def test_batch_sizes_of_the_model_are_those_that_the_server_pads_to() -> None:
    documents = _render(*ON_TPU, "--batch-size", "16", "--batch-size", "64")
    text = documents["ConfigMap"]["data"]["batching_parameters.txt"]
    assert "max_batch_size { value: 64 }" in text
    assert text.endswith("allowed_batch_sizes: 16\nallowed_batch_sizes: 64\n")


@pytest.mark.parametrize("kserve", [(), ("--kserve",)])
def test_a_model_that_batches_itself_is_served_without(kserve) -> None:
    documents = _render("--no-batching", *kserve)
    (arguments,) = (
        [documents["InferenceService"]["spec"]["predictor"]["model"]["args"]]
        if kserve
        else [container["args"] for container in _pod(documents)["containers"]]
    )
    assert not [word for word in arguments if "batching" in word]


def test_kserve_on_a_tpu() -> None:
    documents = _render("--kserve", "--tpu", "v6e:1x1")
    accepted(documents["ConfigMap"])
    service = documents["InferenceService"]
    assert service["apiVersion"] == "serving.kserve.io/v1beta1"
    predictor = service["spec"]["predictor"]
    model = predictor["model"]
    assert model["modelFormat"] == {"name": "tensorflow"}
    assert model["storageUri"] == MODEL
    assert "--saved_model_tags=serve,tpu" in model["args"]
    assert model["resources"]["limits"]["google.com/tpu"] == "1"
    assert predictor["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v6e-slice"
    assert (
        predictor["volumes"][0]["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"]
    )
    # Arguments that KServe's own runtime already sets.
    assert not [word for word in model["args"] if word.startswith(("--model_", "--port"))]
    # The rest of a predictor is a pod and a container, which the client knows.
    container = {
        key: model[key] for key in ("args", "resources", "volumeMounts", "securityContext")
    }
    pod = {key: predictor[key] for key in ("nodeSelector", "volumes", "securityContext")}
    accepted(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {"template": {"spec": {**pod, "containers": [{"name": "model", **container}]}}},
        }
    )


@pytest.mark.parametrize(("line", "tensorflow"), [("1.16", "2.16"), ("1.21", "2.21")])
def test_the_server_has_the_tensorflow_of_the_line_that_exported(line, tensorflow) -> None:
    (container,) = _pod(_render("--line", line))["containers"]
    assert container["image"].startswith(f"tensorflow/serving:{tensorflow}.")
    model = _render("--line", line, "--kserve")["InferenceService"]["spec"]["predictor"]["model"]
    assert container["image"] == f"tensorflow/serving:{model['runtimeVersion']}"


def test_without_a_line_the_server_follows_this_environments_tensorflow() -> None:
    (container,) = _pod(_render())["containers"]
    minor = ".".join(tf.__version__.split(".")[:2])
    assert container["image"].startswith(f"tensorflow/serving:{minor}.")


@pytest.mark.parametrize("words", [("--image", "images/server:1"), ("--tpu", "v5e:2x2")])
def test_kserve_gets_no_version_where_an_image_is_named_or_needed(words) -> None:
    predictor = _render("--kserve", *words)["InferenceService"]["spec"]["predictor"]
    assert "runtimeVersion" not in predictor["model"]


def test_kserve_on_cpus_leaves_image_and_nodes_to_kserve() -> None:
    predictor = _render("--kserve")["InferenceService"]["spec"]["predictor"]
    assert "nodeSelector" not in predictor
    assert "image" not in predictor["model"]
    assert not [word for word in predictor["model"]["args"] if "tags" in word]


def refusal(words, *says):
    return case("exports", f"`manifests.py serving {shlex.join(words)}`", *says, values=(words,))


@pytest.mark.parametrize(
    "words",
    [
        refusal(
            ("--tpu", "v5e:4x4", "--image", "i:1"),
            "tpu='v5e:4x4' has 4 hosts, but a server runs on one: use a slice of a single host",
        ),
        refusal(
            ("--tpu", "v5e:2x2"), "needs an image with TensorFlow Serving for TPUs", "with --image"
        ),
        refusal(("--tpu-as-root",), "tpu_as_root is for containers on TPU hosts", "leave it out"),
        refusal(("--line", "1.15"), "'--line': '1.15' is not one of '1.16', '1.21'"),
        refusal(("--batch-size", "8"), "batch_sizes=[8] apply only to", "leave them out"),
        refusal(
            ("--batch-size", "99999999"), "'--batch-size': 99999999 is not in the range 1<=x<="
        ),
        refusal(("--replicas", "0"), "'--replicas': 0 is not in the range 1<=x<="),
        refusal(
            ("--name", "-x"),
            "name='-x' is not a valid Kubernetes name: use up to 48 lower-case letters",
        ),
        refusal(
            ("--image", "a b"), "image='a b' is not the name of a container image; give one with a"
        ),
        refusal(
            ("--cpu", "abc"), "cpu='abc' is not a number of CPUs; give one such as '4' or '500m'"
        ),
        refusal(
            ("--memory", "--"), "memory='--' is not an amount of memory; give bytes, or a number"
        ),
        refusal(
            ("--model", "/nope"), "model='/nope' is not a path in a bucket", "give one that starts"
        ),
        refusal(
            ("--model", ""), "model='' is not a path in a bucket", "give one that starts with gs://"
        ),
        refusal(
            ("--kserve", "--model", "/nope"), "model='/nope' is not a path in a bucket", "give one"
        ),
    ],
)
def test_what_does_not_fit_is_one_line(words, refused) -> None:
    refused.output(_invoke(*words))
