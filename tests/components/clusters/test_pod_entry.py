"""Tests how a container declares its inputs' types to TFX when the backend gives none that TFX can use."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import v1 as tfx
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils as of_tfx

from tests.bad_input import row
from tests.components.clusters.compiled import tiny_spec
from tests.tfx_importers import importers
from tfx_tpu_trainer import RunPage, TpuTrainer
from tfx_tpu_trainer.components.clusters._compiling import compile_pipeline
from tfx_tpu_trainer.components.clusters._html_page import HtmlFile, show_pages
from tfx_tpu_trainer.components.clusters.pod_entry import know_html, with_declared_types

DECLARED = {"instanceSchema": "title: tfx.Examples\ntype: object\n"}
PAGE = {"schemaTitle": "system.HTML", "schemaVersion": "0.0.1"}


def _arguments(artifact: dict[str, Any], *, declared: dict[str, Any] | None = None) -> list[str]:
    """A container's arguments for one input, `data`."""
    told = {"name": "7", "uri": "gs://b/data", "metadata": {"span": 3.0}, **artifact}
    invocation = {"inputs": {"artifacts": {"data": {"artifacts": [told]}}}}
    inputs_spec = {"artifacts": declared or {}}
    return [
        *("--executor_class_path", "a.B"),
        *("--json_serialized_invocation_args", json.dumps(invocation)),
        *("--json_serialized_inputs_spec_args", json.dumps(inputs_spec)),
        "--runner=DirectRunner",
    ]


def _parsed(arguments: list[str]) -> tfx.dsl.Artifact:
    """The artifact as TFX reads it."""
    message = json_format.Parse(arguments[3], pipeline_spec_pb2.ExecutorInput())
    (artifact,) = of_tfx.parse_raw_artifact_dict(message.inputs.artifacts, {})["data"]
    return artifact


@pytest.mark.parametrize(
    "given",
    [
        # As the driver of Kubeflow Pipelines hands an input on; as its SDK's local engine does; as newer drivers may.
        {},
        {"type": {"schemaTitle": "system.Artifact", "schemaVersion": "0.0.1"}},
        {"type": {"schemaTitle": "Artifact"}},
    ],
)
def test_an_input_gets_the_type_that_it_was_declared_with(given):
    arguments = _arguments(given, declared={"data": {"artifactType": DECLARED}})
    # TFX alone can make nothing of it.
    with pytest.raises((UnboundLocalError, ImportError, ValueError)):
        _parsed(arguments)

    filled = with_declared_types(arguments)
    artifact = _parsed(filled)
    assert isinstance(artifact, tfx.types.standard_artifacts.Examples)
    assert (artifact.uri, artifact.span) == ("gs://b/data", 3)
    assert [*filled[:3], *filled[4:]] == [*arguments[:3], *arguments[4:]]


@pytest.mark.parametrize("known", [{"instanceSchema": "title: tfx.Model\n"}, PAGE])
def test_a_type_that_tfx_knows_stays(known):
    know_html()
    arguments = _arguments({"type": known}, declared={"data": {"artifactType": DECLARED}})
    filled = json.loads(with_declared_types(arguments)[3])
    assert filled == json.loads(arguments[3])


def test_arguments_that_declare_nothing_stay():
    arguments = _arguments({})[:4]
    assert with_declared_types(arguments) == arguments
    assert with_declared_types(["--helpfull"]) == ["--helpfull"]


@row(
    "runners",
    "a task of Kubeflow Pipelines with an input that was not declared",
    "the backend gives no type of the input 'data' that TFX knows",
    "compile the pipeline again",
)
def test_an_input_of_which_nothing_is_known_is_named(refused):
    with refused(ValueError):
        with_declared_types(_arguments({}))


@pytest.mark.parametrize(
    ("backend", "entry"),
    [
        ("kubeflow", "tfx_tpu_trainer.components.clusters.pod_entry"),
        # It gives the types of inputs itself.
        ("vertex", "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"),
    ],
)
def test_where_the_backend_says_no_types_every_task_of_tfx_starts_with_it(backend, entry):
    source = tfx.components.CsvExampleGen("gs://bucket/data")
    statistics = tfx.components.StatisticsGen(source.outputs["examples"])
    pipeline = tfx.dsl.Pipeline("p", "gs://bucket/p", components=[source, statistics])
    spec = compile_pipeline(pipeline, image="r/p:1", backend=backend).pipeline_spec
    for executor in spec["deploymentSpec"]["executors"].values():
        container = executor["container"]
        assert container["command"] == ["python", "-m", entry]
        # Each value is a separate word.
        assert "--json_serialized_inputs_spec_args" in container["args"]


def _pipeline():
    nodes = importers()
    trainer = TpuTrainer(
        **{name: node.outputs["result"] for name, node in nodes.items()},
        train_args=tfx.proto.TrainArgs(num_steps=10),
        module="tests.components.trainer.small_model",
    )
    return tfx.dsl.Pipeline("p", "gs://bucket/p", components=[*nodes.values(), trainer])


@pytest.mark.parametrize("backend", ["kubeflow", "vertex"])
def test_a_backend_shows_the_page(backend):
    compiled = compile_pipeline(_pipeline(), image="r/p:1", backend=backend)
    trainer = compiled.pipeline_spec["components"]["TpuTrainer"]
    outputs = trainer["outputDefinitions"]["artifacts"]
    assert outputs["page"]["artifactType"] == {
        "schemaTitle": "system.HTML",
        "schemaVersion": "0.0.1",
    }
    title = yaml.safe_load(outputs["model"]["artifactType"]["instanceSchema"])["title"]
    assert title == "tfx.Model"
    executors = compiled.pipeline_spec["deploymentSpec"]["executors"]
    container = executors[trainer["executorLabel"]]["container"]
    assert container["command"] == ["python", "-m", "tfx_tpu_trainer.components.clusters.pod_entry"]
    assert "--executor_class_path" in container["args"]


def test_components_without_a_page_stay_what_they_are():
    spec = tiny_spec()
    spec["components"]["comp-trainer"]["outputDefinitions"] = {
        "artifacts": {"model": {"artifactType": {"instanceSchema": "title: tfx.Model\n"}}}
    }
    before = json.dumps(spec)
    show_pages(spec)
    assert json.dumps(spec) == before


@pytest.mark.parametrize(
    ("artifact_type", "kind", "file"),
    [
        ({"schemaTitle": "system.HTML", "schemaVersion": "0.0.1"}, HtmlFile, ""),
        # As TFX's own runner compiles it.
        ({"instanceSchema": "title: tfx_tpu_trainer.RunPage\n"}, RunPage, "/run.html"),
    ],
)
def test_a_container_knows_what_it_is_told_to_write(artifact_type, kind, file):
    know_html()
    told = {"artifacts": [{"name": "a/1", "uri": "gs://b/trainer/page", "type": artifact_type}]}
    artifacts = json_format.ParseDict(told, pipeline_spec_pb2.ArtifactList())
    parsed = of_tfx.parse_raw_artifact_dict({"page": artifacts}, {})
    (page,) = parsed["page"]
    assert type(page) is kind
    assert page.path == f"gs://b/trainer/page{file}"


def test_the_page_of_a_local_run_is_a_file_in_the_artifacts_folder(tmp_path):
    page = RunPage()
    page.uri = str(tmp_path)
    assert pathlib.Path(page.path) == tmp_path / "run.html"
