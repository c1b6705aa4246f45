"""Tests a config's Beam arguments in the compiled pipeline, where each Beam component's container gets them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from apache_beam.options import pipeline_options

from tests.bad_input import row
from tests.workbench.project.test_beam import beam_listings

LISTINGS = beam_listings()
BEAM_COMPONENTS = ("CsvExampleGen", "StatisticsGen", "Transform", "Evaluator", "BulkInferrer")

pytestmark = pytest.mark.e2e


def _compiled_arguments(runner: Any, beam_arguments: list[str], output: Any) -> list[list[str]]:
    """The arguments of each Beam component's container."""
    result = runner(
        *("--set", f"beam_args={json.dumps(beam_arguments)}"),
        *("--set", "bulk_inference.splits=[eval]", "--output", str(output)),
    )
    assert result.exit_code == 0, result.output
    spec = json.loads(output.read_text(encoding="utf-8"))["pipelineSpec"]
    executors = spec["deploymentSpec"]["executors"]
    return [executors[f"{name}_executor"]["container"]["args"] for name in BEAM_COMPONENTS]


@pytest.mark.parametrize("fixture", ["compile_kubeflow", "compile_vertex"])
def test_on_dataflow_with_the_pipelines_image(fixture, request, tmp_path) -> None:
    expected = LISTINGS["DataflowRunner"]
    runner = request.getfixturevalue(fixture)
    for arguments in _compiled_arguments(runner, expected, tmp_path / "taxi.json"):
        assert arguments[-len(expected) :] == expected
        options = pipeline_options.PipelineOptions(arguments)
        assert options.view_as(pipeline_options.StandardOptions).runner == "DataflowRunner"
        cloud = options.view_as(pipeline_options.GoogleCloudOptions)
        assert (cloud.project, cloud.region) == ("our-models-17", "us-central1")
        assert cloud.temp_location == "gs://bucket/beam"
        workers = options.view_as(pipeline_options.WorkerOptions)
        assert workers.sdk_container_image == "us-docker.pkg.dev/our-models-17/images/pipelines:1"


def test_on_flink_with_a_setup_file(compile_kubeflow, tmp_path) -> None:
    expected = LISTINGS["FlinkRunner"]
    for arguments in _compiled_arguments(compile_kubeflow, expected, tmp_path / "taxi.json"):
        assert arguments[-len(expected) :] == expected
        options = pipeline_options.PipelineOptions(arguments)
        assert options.view_as(pipeline_options.SetupOptions).setup_file == "/app/setup.py"
        flink = options.view_as(pipeline_options.FlinkRunnerOptions)
        assert flink.flink_master == "flink-jobmanager:8081"
        assert options.view_as(pipeline_options.PortableOptions).sdk_worker_parallelism == "2"


def test_on_spark_with_worker_pools(compile_kubeflow, tmp_path) -> None:
    expected = LISTINGS["SparkRunner"]
    for arguments in _compiled_arguments(compile_kubeflow, expected, tmp_path / "taxi.json"):
        assert arguments[-len(expected) :] == expected
        portable = pipeline_options.PipelineOptions(arguments).view_as(
            pipeline_options.PortableOptions
        )
        assert portable.environment_type == "EXTERNAL"
        assert portable.environment_config == "localhost:50000"


@row(
    "runners",
    "`compile --kubeflow` with `--runner=DataflowRunner` in `beam_args`, and no `--region`",
    "--runner=DataflowRunner needs --region; add it, such as --region=us-central1",
)
def test_arguments_that_would_fail_in_the_pods_are_refused_here(
    compile_kubeflow, tmp_path, refused
) -> None:
    output = tmp_path / "taxi.json"
    words = [word for word in LISTINGS["DataflowRunner"] if "region" not in word]
    refused.output(
        compile_kubeflow("--set", f"beam_args={json.dumps(words)}", "--output", str(output))
    )
    assert not output.exists()
