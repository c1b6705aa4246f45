"""Tests `compile --kubeflow` as typed."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from google.protobuf import json_format
from kfp import components
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.bad_input import case, row
from tests.workbench.cli.conftest import IMAGE, PLACES, Run, compiled_once
from tfx_tpu_trainer.workbench.cli.main import main

ROOT = Path(__file__).parents[3]
COMMAND = ("-m", "tfx_tpu_trainer.workbench.cli.main", "compile", "--kubeflow", *PLACES)
NODES = {"taxi": {"CsvExampleGen", "Evaluator"}, "digits": {"ImportExampleGen"}}
COMMON = {"StatisticsGen", "SchemaGen", "Transform", "TpuTrainer", "EvalMetricsGate", "Pusher"}


def _specs(output: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the pipeline spec and the platform spec of a file."""
    text = output.read_text(encoding="utf-8")
    if output.suffix == ".json":
        document = json.loads(text)
        return document["pipelineSpec"], document.get("platformSpec", {})
    documents = list(yaml.safe_load_all(text))
    return documents[0], (documents[1] if len(documents) == 2 else {})


def _constant(spec: dict[str, Any], node: str, parameter: str) -> Any:
    given = spec["root"]["dag"]["tasks"][node]["inputs"]["parameters"][parameter]
    return given["runtimeValue"]["constant"]


@pytest.fixture(scope="module")
def compiled(compile_kubeflow, tmp_path_factory):
    """Compiles a pipeline with a TPU, once for each form."""
    return compiled_once(
        compile_kubeflow,
        tmp_path_factory.mktemp("compiled"),
        *("--set", "trainer.tpu=v5e:2x4", "--set", "trainer.train_steps=7"),
        *("--retries", "1", "--retries", "TpuTrainer=4", "--no-cache-for", "Pusher"),
    )


@pytest.mark.e2e
@pytest.mark.parametrize("pipeline", ["taxi", "digits"])
@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_both_pipelines_compile_offline(compiled, pipeline, ending):
    output = compiled(pipeline, ending)
    document, platform_document = _specs(output)
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    assert spec.schema_version == "2.1.0"
    assert COMMON | NODES[pipeline] <= set(spec.components)
    page = spec.components["TpuTrainer"].output_definitions.artifacts["page"].artifact_type
    assert (page.schema_title, page.schema_version) == ("system.HTML", "0.0.1")
    container = document["deploymentSpec"]["executors"]["TpuTrainer_executor"]["container"]
    assert container["image"] == IMAGE
    assert container["resources"] == {"accelerator": {"type": "google.com/tpu", "count": "8"}}
    assert (
        "tfx_tpu_trainer.components.trainer.trainer_executor.TpuTrainerExecutor"
        in container["args"]
    )
    assert _constant(document, "TpuTrainer", "module") == f"pipelines.{pipeline}.model"
    assert int(json.loads(_constant(document, "TpuTrainer", "train_args"))["num_steps"]) == 7
    assert json.loads(_constant(document, "TpuTrainer", "tpu")) == {"slice_name": "v5e:2x4"}

    platform = json_format.ParseDict(platform_document, pipeline_spec_pb2.PlatformSpec())
    executors = platform.platforms["kubernetes"].deployment_spec.executors
    assert list(executors) == ["TpuTrainer_executor"]
    config = json_format.ParseDict(
        json_format.MessageToDict(executors["TpuTrainer_executor"]),
        kubernetes_executor_config_pb2.KubernetesExecutorConfig(),
    )
    assert dict(config.node_selector.labels) == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }


# Placeholders that the driver and the launcher of Kubeflow Pipelines fill in, anywhere in an argument.
FILLED_IN = re.compile(
    r"\{\{\$(\.(inputs|outputs)\.(parameters|artifacts)\['\w+'\](\.(uri|path|output_file))?)?\}\}"
)


@pytest.mark.e2e
@pytest.mark.parametrize("pipeline", ["taxi", "digits"])
def test_the_kfp_sdk_loads_it_and_kubeflow_pipelines_fills_in_each_parameter(compiled, pipeline):
    component = components.load_component_from_file(str(compiled(pipeline, "yaml")))
    assert component.name == pipeline
    assert "TpuTrainer" in component.pipeline_spec.components
    executors = component.platform_spec.platforms["kubernetes"].deployment_spec.executors
    assert list(executors) == ["TpuTrainer_executor"]
    # Of the JSON form, which is Vertex AI's, the SDK reads the parts.
    document, platform = _specs(compiled(pipeline, "json"))
    text = yaml.safe_dump_all([document, platform])
    assert components.load_component_from_text(text).name == pipeline
    for task in document["root"]["dag"]["tasks"].values():
        for given in task["inputs"].get("parameters", {}).values():
            assert set(given["runtimeValue"]) == {"constant"}
    invocations = 0
    for executor in document["deploymentSpec"]["executors"].values():
        for text in executor["container"]["command"] + executor["container"]["args"]:
            rest, filled_in = FILLED_IN.subn("", text)
            assert "{{" not in rest
            invocations += filled_in
    assert invocations == len(document["deploymentSpec"]["executors"])


@pytest.mark.e2e
def test_retries_and_caching_are_in_the_tasks(compiled):
    document, _ = _specs(compiled("taxi", "yaml"))
    tasks = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec()).root.dag.tasks
    retries = {name: task.retry_policy.max_retry_count for name, task in tasks.items()}
    assert retries.pop("TpuTrainer") == 4
    assert set(retries.values()) == {1}
    policy = tasks["Transform"].retry_policy
    assert (policy.max_retry_count, policy.backoff_duration.seconds, policy.backoff_factor) == (
        1,
        60,
        2,
    )
    assert tasks["Transform"].caching_options.enable_cache
    assert not tasks["Pusher"].caching_options.enable_cache
    assert not tasks["latest_blessed_model"].caching_options.enable_cache


@pytest.mark.e2e
def test_without_a_tpu_nothing_is_asked_of_a_node(compile_kubeflow, tmp_path):
    output = tmp_path / "deep" / "taxi.yaml"
    result = compile_kubeflow("--output", str(output), "--no-cache", "--set", "name=taxi_2")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{output}: compiled for Kubeflow Pipelines, image {IMAGE}\n"
    assert os.listdir(output.parent) == ["taxi.yaml"]
    document, platform = _specs(output)
    assert document["pipelineInfo"]["name"] == "taxi-2"
    assert platform == {}
    assert (
        "resources"
        not in document["deploymentSpec"]["executors"]["TpuTrainer_executor"]["container"]
    )
    tasks = document["root"]["dag"]["tasks"]
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in tasks.values())


@pytest.mark.e2e
def test_a_tpu_image_of_its_own(compile_kubeflow, tmp_path):
    output = tmp_path / "taxi.yaml"
    tpu = "trainer.tpu={slice_name: v5p:4, spot: true, runtime_image: 'r.example/tpu:2'}"
    assert compile_kubeflow("--output", str(output), "--set", tpu).exit_code == 0
    document, platform = _specs(output)
    images = {
        name: executor["container"]["image"]
        for name, executor in document["deploymentSpec"]["executors"].items()
        if "container" in executor
    }
    assert images.pop("TpuTrainer_executor") == "r.example/tpu:2"
    assert set(images.values()) == {IMAGE}
    (trainer,) = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
    labels = trainer["nodeSelector"]["labels"]
    assert labels["cloud.google.com/gke-spot"] == "true"
    assert trainer["tolerations"] == [
        {
            "key": "cloud.google.com/gke-spot",
            "operator": "Equal",
            "value": "true",
            "effect": "NoSchedule",
        }
    ]
    assert labels["cloud.google.com/gke-tpu-topology"] == "2x2x1"


@pytest.mark.e2e
def test_a_dry_run_prints_the_run_and_sends_nothing(compile_kubeflow, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = compile_kubeflow(
        *("--dry-run", "--experiment", "taxi", "--run-name", "a", "--set", "trainer.tpu=v6e:4"),
    )
    assert result.exit_code == 0, result.output
    assert "note: image 'registry.example/pipelines:1' was not checked" in result.stderr
    printed = json.loads(result.stdout)
    assert (printed["host"], printed["experiment"]) == (None, "taxi")
    assert printed["run"]["display_name"] == "a"
    assert printed["run"]["runtime_config"] == {"pipeline_root": "gs://bucket/taxi/artifacts"}
    specs = printed["run"]["pipeline_spec"]
    json_format.ParseDict(specs["pipeline_spec"], pipeline_spec_pb2.PipelineSpec())
    json_format.ParseDict(specs["platform_spec"], pipeline_spec_pb2.PlatformSpec())


PODS = (
    *("--set", "pods.service_account=pipeline-runner"),
    *("--set", "pods.all.env={HTTPS_PROXY: 'http://proxy:3128'}"),
    *("--set", "pods.all.secret_env={bucket-key: {id: AWS_ACCESS_KEY_ID}}"),
    *("--set", "pods.all.image_pull_secrets=[registry]"),
    *("--set", "pods.trainer.tolerations=[{key: spot, operator: Exists}]"),
    *("--set", "pods.trainer.labels={team: rides}"),
)


@pytest.mark.e2e
def test_pods_have_what_the_config_gives_them(compile_kubeflow, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    output = tmp_path / "taxi.yaml"
    result = compile_kubeflow("--output", str(output), "--dry-run", "--host", "http://k:9", *PODS)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["run"]["service_account"] == "pipeline-runner"
    document, platform = _specs(output)
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    containers = {
        label: executor["container"]
        for label, executor in document["deploymentSpec"]["executors"].items()
        if "container" in executor
    }
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert all(container["env"] == [proxy] for container in containers.values())
    configs = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert set(configs) == set(containers)
    for config in configs.values():
        (secret,) = config["secretAsEnv"]
        assert secret["keyToEnv"] == [{"secretKey": "id", "envVar": "AWS_ACCESS_KEY_ID"}]
        assert [each["secretName"] for each in config["imagePullSecret"]] == ["registry"]
    trainer = configs.pop("TpuTrainer_executor")
    assert trainer["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert trainer["podMetadata"] == {"labels": {"team": "rides"}}
    assert not any({"tolerations", "podMetadata"} & set(config) for config in configs.values())
    component = components.load_component_from_file(str(output))
    assert component.platform_spec.platforms["kubernetes"].deployment_spec.executors


@pytest.mark.e2e
def test_a_submission_reaches_the_api(compile_kubeflow, kubeflow_api, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    host, received = kubeflow_api
    places = ("--root", "s3://bucket/taxi", "--data", "s3://bucket/data")
    result = compile_kubeflow("--submit", "--host", host, *places, "--set", "trainer.tpu=v5e:8")
    assert result.exit_code == 0, result.output
    assert f"run r1 started on {host}" in result.stdout
    run = received[-1]
    assert run["path"] == "/apis/v2beta1/runs" and run["experiment_id"] == "e1"
    assert run["runtime_config"]["pipeline_root"] == "s3://bucket/taxi/artifacts"
    specs = run["pipeline_spec"]
    assert "TpuTrainer" in specs["pipeline_spec"]["components"]
    executors = specs["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert "TpuTrainer_executor" in executors


HOST = ("--host", "http://127.0.0.1:9")


def refusal(arguments, *says):
    given = f"`compile --kubeflow {shlex.join(arguments)}`"
    return case("runners", given, "Error: ", *says, values=(arguments,))


@pytest.mark.parametrize(
    "arguments",
    [
        refusal(
            ("--output", "t.txt"), "output 't.txt' ends with neither .yaml nor .json: rename it"
        ),
        refusal(
            ("--output", "/dev/null/t.json"), "'/dev/null' is not a folder that you may write to"
        ),
        refusal(
            ("--data", "", "--image", ""),
            "taxi/config.yaml: cluster.data and cluster.image are not set; add them there",
            "or give --data and --image",
        ),
        refusal(("--submit",), "host is not set: give --host or the environment variable"),
        refusal(
            ("--dry-run", "--host", "h"), "host='h' is not the address of an API; give one such as"
        ),
        refusal(
            ("--dry-run", *HOST, "--root", "runs/x"), "root='runs/x' is not a path in a bucket"
        ),
        refusal(
            ("--dry-run", *HOST, "--image", "p"), "image='p' has no tag", "add one, as in 'p:1'"
        ),
        refusal(("--dry-run", *HOST, "--token", "a b"), "token has spaces", "copy it again"),
        refusal(
            ("--dry-run", *HOST, "--service-account", "a@b"),
            "service_account='a@b' is not a service account of Kubernetes; give a name",
        ),
        refusal(
            ("--output", "t.json", "--set", "pods.all.claims={cache: cache}"),
            "pods.all.claims.cache: 'cache' is not a path to mount at; give an absolute one",
        ),
        refusal(
            ("--output", "t.json", "--retries", "x=y"), "--retries 'x=y' is neither a number nor"
        ),
        refusal(
            ("--output", "t.json", "--retries", "²"), "--retries '²' is neither a number nor NODE"
        ),
        refusal(
            ("--backoff", "99999999"),
            "TaskOptions backoff_seconds=99999999: Input should be less than or equal to 86400",
        ),
        refusal(
            ("--output", "t.json", "--retries", "9999999999"),
            "TaskOptions retries=9999999999: Input should be less than or equal to 1000",
        ),
        refusal(
            ("--output", "t.json", "--set", "trainer.tpu=v5e:3x3"),
            "v5e has no slice '3x3'; nearest: v5e:2x4",
        ),
        refusal(
            ("--output", "t.json", "--set", "trainer.tpu=v5e:8", "--set", "trainer.num_shards=4"),
            "num_shards=4 contradicts tpu='v5e:8', which has 8 replicas: leave num_shards out",
        ),
        refusal(
            (
                *("--output", "t.json", "--set", "trainer.tpu=v5e:8"),
                *("--set", "trainer.train_batch_size=60"),
            ),
            "train_batch_size 60 must be divisible by the 8 replicas of v5e:2x4: 56 or 64 would be",
        ),
        refusal(
            (
                *("--output", "t.json", "--set", "trainer.module=null"),
                *("--set", "trainer.module_file=gs://bucket/model.py"),
            ),
            "trainer.module_file is 'gs://bucket/model.py': ",
            "would need the network",
            "give its import path as trainer.module",
        ),
        refusal(
            ("--submit", *HOST), "host='http://127.0.0.1:9': ", "refused); name the address of"
        ),
    ],
)
def test_what_cannot_run_is_one_line_and_writes_nothing(
    compile_kubeflow: Run, monkeypatch, tmp_path, arguments, refused
):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("KF_PIPELINES_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)
    result = compile_kubeflow(*arguments)
    refused.output(result)
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        refusal(
            ("--submit", "--dry-run"),
            "--submit and --dry-run exclude each other; leave one of them out",
        ),
        refusal(("--vertex",), "give --kubeflow or --vertex, and not both"),
        refusal(("--region", "r"), "--region is for --vertex, not for --kubeflow; leave it out"),
    ],
)
def test_what_no_option_takes(compile_kubeflow: Run, tmp_path, monkeypatch, arguments, refused):
    monkeypatch.chdir(tmp_path)
    refused.output(compile_kubeflow(*arguments))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        case(
            "runners",
            f"`compile --kubeflow --output {name}`, where that is a file of one's own",
            f"{name}' exists and is not a compiled pipeline: give another name with --output",
            values=(name, content),
        )
        for name, content in (("config.yaml", "name: taxi\n"), ("rows.json", '{"size": 1}\n'))
    ],
)
def test_only_what_was_compiled_is_replaced(compile_kubeflow, tmp_path, name, content, refused):
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    refused.output(compile_kubeflow("--output", str(file)))
    assert file.read_text(encoding="utf-8") == content


@row(
    "runners",
    "`compile --kubeflow` of a project whose `create_pipeline` raises a KeyError",
    "can't be made: KeyError: 'rows'",
)
def test_what_a_project_raises_is_one_line(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "pipeline", None)
    (tmp_path / "pipeline.py").write_text(
        "def create_pipeline(config): return {}['rows']\n", encoding="utf-8"
    )
    (tmp_path / "config.yaml").write_text(
        "name: mine\nroot: runs\ntrainer: {module: model, label_key: y, train_steps: 1}\n",
        encoding="utf-8",
    )
    words = ["compile", "--kubeflow", "--project", str(tmp_path), *PLACES]
    refused.output(CliRunner().invoke(main, words))


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        refusal(
            ("--retries", "Trainer=2"),
            "node 'Trainer' is not in the pipeline or runs no container: use one of ",
        ),
        refusal(
            ("--set", "trainer.tpu=v5e:4x4"),
            "TpuTrainer: v5e:4x4 has 4 hosts, but a task of Kubeflow Pipelines is one pod",
        ),
        refusal(("--set", "trainer.tpu=v2:2x2"), "GKE has no nodes with v2:2x2: use v3 or newer"),
    ],
)
def test_what_the_compiled_pipeline_shows_to_be_wrong(
    compile_kubeflow, tmp_path, arguments, refused
):
    refused.output(compile_kubeflow("--output", str(tmp_path / "taxi.yaml"), *arguments))
    assert not list(tmp_path.iterdir())


@row(
    "runners",
    "a host that takes connections and never answers",
    "Error: host='http://127.0.0.1:",
    "Kubeflow Pipelines can't be reached",
    "name the address of its API",
)
def test_a_host_that_never_answers_is_given_up(tmp_path, refused):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, *COMMAND, "--pipeline", "taxi"]
        result = subprocess.run(
            [*command, "--output", str(tmp_path / "taxi.yaml"), "--submit", "--host", host],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            # It gives the host up within ten seconds; a busy machine takes longer to start Python.
            timeout=300,
            check=False,
        )
    refused.output(result)
    assert host in result.stderr
    assert not list(tmp_path.iterdir())


@row(
    "runners",
    "`compile --kubeflow --pipeline taxy`",
    "Error: unknown pipeline 'taxy'; did you mean 'taxi'? Pipelines here: digits, penguin, taxi",
)
def test_a_mistake_is_told_before_tensorflow_is_imported(refused):
    command = [sys.executable, "-X", "importtime", *COMMAND]
    result = subprocess.run(
        [*command, "--pipeline", "taxy", "--output", "t.json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    refused.output(result)
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert not imported & {"tensorflow", "tfx"}
