"""The page of a training as Kubeflow Pipelines and Vertex AI show it, and as TFX reads it in a container."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx import v1 as tfx
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils as of_tfx

from tests.components.clusters.compiled import tiny_spec
from tests.tfx_importers import importers
from tfx_tpu_trainer import RunPage, TpuTrainer
from tfx_tpu_trainer.components.clusters._compiling import compile_pipeline
from tfx_tpu_trainer.components.clusters._html_page import HtmlFile, show_pages
from tfx_tpu_trainer.components.clusters.pod_entry import know_html


def _pipeline():
    nodes = importers()
    trainer = TpuTrainer(
        **{name: node.outputs["result"] for name, node in nodes.items()},
        train_args=tfx.proto.TrainArgs(num_steps=10),
        module="tests.components.trainer.small_model",
    )
    return tfx.dsl.Pipeline("p", "gs://bucket/p", components=[*nodes.values(), trainer])


# Kubeflow Pipelines takes 2.1 only.
@pytest.mark.parametrize(
    ("backend", "version"), [("kubeflow", "2.1"), ("vertex", "2.0"), ("vertex", "2.1")]
)
def test_a_backend_shows_the_page(backend, version):
    compiled = compile_pipeline(_pipeline(), image="r/p:1", backend=backend, spec_version=version)
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
    assert container["command"] == [
        "python",
        "-m",
        "tfx_tpu_trainer.components.clusters.pod_entry",
    ]
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
