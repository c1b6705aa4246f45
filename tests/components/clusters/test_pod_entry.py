"""What a container tells TFX of its inputs, where the backend says nothing that TFX can use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import v1 as tfx
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils as of_tfx

from tests.bad_input import row
from tfx_tpu_trainer.components.clusters._compiling import compile_pipeline
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
    "the backend says no type of the input 'data' that TFX knows",
    "compile the pipeline again",
)
def test_an_input_of_which_nothing_is_known_is_named(refused):
    with refused(ValueError):
        with_declared_types(_arguments({}))


@pytest.mark.parametrize(
    ("backend", "entry"),
    [
        ("kubeflow", "tfx_tpu_trainer.components.clusters.pod_entry"),
        # It says the types of inputs itself.
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
        # Each value is a word of its own.
        assert "--json_serialized_inputs_spec_args" in container["args"]
