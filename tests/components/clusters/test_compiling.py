"""Tests what compile_pipeline rejects before TFX compiles anything."""

from __future__ import annotations

import pytest
from tfx import v1 as tfx

from tests.bad_input import case, row
from tests.tfx_importers import importers
from tfx_tpu_trainer.components import TpuTrainer
from tfx_tpu_trainer.components.clusters._compiling import compile_pipeline
from tfx_tpu_trainer.components.clusters._pipeline_spec import TaskOptions
from tfx_tpu_trainer.components.clusters._pods import Pods


def _pipeline(root: str, **arguments) -> tfx.dsl.Pipeline:
    nodes = importers()
    trainer = TpuTrainer(
        **{name: node.outputs["result"] for name, node in nodes.items()},
        train_args=tfx.proto.TrainArgs(num_steps=10),
        **arguments,
    )
    return tfx.dsl.Pipeline("p", root, components=[*nodes.values(), trainer])


@pytest.mark.parametrize(
    ("root", "module_file"),
    [
        case(
            "runners",
            f"`module_file={module_file!r}` and the root `{root}`, compiled",
            f"TpuTrainer: module_file={module_file!r} ",
            says,
            "module=",
            values=(root, module_file),
        )
        for root, module_file, says in (
            (
                "gs://bucket/p",
                "tests/components/trainer/small_model.py",
                "and TFX writes its wheel to 'gs://bucket/p'",
            ),
            ("/tmp/p", "gs://bucket/model.py", "and it is on a bucket"),
        )
    ],
)
def test_a_module_file_that_needs_the_network(root, module_file, refused):
    pipeline = _pipeline(root, module_file=module_file)
    with refused(ValueError):
        compile_pipeline(pipeline, image="r/p:1", backend="kubeflow")


@row("runners", "a TpuTrainer with a slice, for Vertex AI", "can't run on v5e:2x4; use VertexTpu")
def test_a_task_of_vertex_ai_gets_no_slice(refused):
    pipeline = _pipeline(
        "gs://bucket/p", module="tests.components.trainer.small_model", tpu="v5e:2x4"
    )
    with refused(ValueError):
        compile_pipeline(pipeline, image="r/p:1", backend="vertex")


@row("runners", "`compile_pipeline(image='r/p')`", "image='r/p' has no tag", "as in 'r/p:1'")
def test_an_image_has_a_tag(refused):
    pipeline = _pipeline("gs://bucket/p", module="tests.components.trainer.small_model")
    with refused(ValueError):
        compile_pipeline(pipeline, image="r/p", backend="kubeflow")


@row(
    "runners",
    "a Resolver, for Kubeflow Pipelines",
    "-resolver: Kubeflow Pipelines runs no task of kind 'resolver', only containers and importers",
    "find the baseline with a LastBlessedModel instead",
)
def test_kubeflow_pipelines_has_no_resolvers(refused):
    resolver = tfx.dsl.Resolver(
        strategy_class=tfx.dsl.experimental.LatestBlessedModelStrategy,
        model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        model_blessing=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelBlessing),
    ).with_id("latest")
    with refused(ValueError):
        compile_pipeline(
            tfx.dsl.Pipeline("p", "gs://bucket/p", components=[resolver]),
            image="r/p:1",
            backend="kubeflow",
        )


def _example_gen(pattern: str) -> tfx.dsl.Pipeline:
    split = tfx.proto.Input.Split(name="train", pattern=pattern)
    node = tfx.components.CsvExampleGen("gs://bucket/data", tfx.proto.Input(splits=[split]))
    return tfx.dsl.Pipeline("p", "gs://bucket/p", components=[node], enable_cache=True)


@pytest.mark.parametrize(
    "pattern",
    [
        case(
            "runners",
            f"an ExampleGen of `{pattern}`, for Kubeflow Pipelines",
            f"CsvExampleGen: its pattern has {found}, but Kubeflow Pipelines does not run the driver",
            "give a pattern without",
            values=pattern,
        )
        for pattern, found in (
            ("span-{SPAN}/*", "{SPAN}"),
            ("{YYYY}-{MM}-{DD}/v{VERSION:2}/*", "{YYYY}"),
        )
    ],
)
def test_kubeflow_pipelines_finds_no_newest_span(pattern, refused):
    with refused(ValueError):
        compile_pipeline(_example_gen(pattern), image="r/p:1", backend="kubeflow")


@pytest.mark.parametrize(("backend", "cached"), [("kubeflow", False), ("vertex", True)])
def test_rows_come_from_a_cache_only_where_it_is_seen_that_they_have_changed(backend, cached):
    options = TaskOptions(caching=True)
    made = compile_pipeline(
        _example_gen("train/*"), image="r/p:1", backend=backend, options=options
    )
    spec = made.job["pipelineSpec"]
    (executor,) = spec["deploymentSpec"]["executors"].values()
    assert "preCacheCheck" in executor["container"]["lifecycle"]
    task = spec["root"]["dag"]["tasks"]["CsvExampleGen"]
    assert task["cachingOptions"] == {"enableCache": cached}


@row(
    "runners",
    "`pods.trainer` for a pipeline without a TpuTrainer",
    "pods.trainer sets env, labels, but the pipeline has no TpuTrainer: give it to pods.all",
)
def test_a_trainers_settings_need_a_trainer(refused):
    pods = Pods.parse(trainer={"env": {"A": "1"}, "labels": {"a": "b"}})
    pipeline = tfx.dsl.Pipeline("p", "gs://bucket/p", components=list(importers().values()))
    with refused(ValueError):
        compile_pipeline(pipeline, image="r/p:1", backend="kubeflow", pods=pods)


@row(
    "runners",
    "`pods.all.claims`, compiled for Vertex AI",
    "pods.all.claims={'c': '/c'} is not supported by tasks of Vertex AI; put the files into",
)
def test_what_vertex_ai_would_pass_over_is_refused(refused):
    pipeline = _pipeline("gs://bucket/p", module="tests.components.trainer.small_model")
    pods = Pods.parse(all={"claims": {"c": "/c"}})
    with refused(ValueError):
        compile_pipeline(pipeline, image="r/p:1", backend="vertex", pods=pods)
