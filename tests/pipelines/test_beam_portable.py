"""Beam's portable road: the pipeline's Beam components on a job service with a pool of worker processes.

The job service is Beam's own, in Python; Flink's and Spark's take the same options.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline_runs import PipelineRun
from tests.pipelines.beam_components import run_component, taxi_components
from tests.pipelines.beam_results import (
    predictions,
    same_metrics,
    same_rows,
    same_statistics,
    same_transform_graph,
)
from tests.pipelines.portable_beam import PortableBeam, portable_beam

DIRECT = (
    "--runner=DirectRunner",
    "--direct_running_mode=in_memory",
    "--sdk_container_image=of-this-process",
)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The components' runs on the pool, with the inputs that they had in the local run.

    Attributes:
        components: The pipeline's components by name.
        inputs: For each of them, the folders of its inputs.
        folder: Where outputs go.
        beam: The job service and its pool.
    """

    components: dict[str, Any]
    inputs: dict[str, dict[str, Path]]
    folder: Path
    beam: PortableBeam

    def at_once(self, *names: str) -> list[Path]:
        """Runs components at the same time, as an orchestrator does; gives their outputs' folders."""
        with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
            return list(threads.map(self._run, names))

    def _run(self, name: str) -> Path:
        return run_component(
            self.components[name], self.inputs[name], self.folder / name, self.beam.arguments
        )


@pytest.fixture(scope="module")
def runs(taxi_run: PipelineRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    examples = taxi_run.output_folder("CsvExampleGen", "examples")
    schema = taxi_run.output_folder("SchemaGen", "schema")
    model = taxi_run.output_folder("TpuTrainer", "model")
    folder = tmp_path_factory.mktemp("portable")
    with portable_beam(folder) as beam:
        yield Runs(
            components=taxi_components(folder / "root"),
            inputs={
                "CsvExampleGen": {},
                "StatisticsGen": {"examples": examples},
                "Transform": {"examples": examples, "schema": schema},
                "Evaluator": {"examples": examples, "model": model, "schema": schema},
                "BulkInferrer": {"examples": examples, "model": model},
            },
            folder=folder,
            beam=beam,
        )


@pytest.mark.e2e
@pytest.mark.sweep
def test_evaluator_and_bulk_inferrer_on_two_worker_processes(
    runs: Runs, taxi_run: PipelineRun, tmp_path: Path
) -> None:
    before = len(runs.beam.started_workers())
    evaluator, bulk_inferrer = runs.at_once("Evaluator", "BulkInferrer")
    assert len(runs.beam.started_workers()) >= before + 2
    assert runs.beam.most_at_once[0] >= 2

    same_metrics(evaluator / "evaluation", taxi_run.output_folder("Evaluator", "evaluation"))

    direct = run_component(
        runs.components["BulkInferrer"], runs.inputs["BulkInferrer"], tmp_path / "direct", DIRECT
    )
    found = predictions(bulk_inferrer / "inference_result")
    assert len(found) > 4_000
    # Rows are put together in other batches, and that moves the last digits of a float32.
    assert found == pytest.approx(predictions(direct / "inference_result"), rel=1e-5, abs=1e-7)


@pytest.mark.sweep
def test_example_gen_gives_the_same_rows(runs: Runs, taxi_run: PipelineRun) -> None:
    (example_gen,) = runs.at_once("CsvExampleGen")
    same_rows(example_gen / "examples", taxi_run.output_folder("CsvExampleGen", "examples"))


@pytest.mark.sweep
def test_statistics_gen_and_transform_on_two_worker_processes(
    runs: Runs, taxi_run: PipelineRun
) -> None:
    before = len(runs.beam.started_workers())
    statistics, transform = runs.at_once("StatisticsGen", "Transform")
    assert len(runs.beam.started_workers()) >= before + 2
    assert runs.beam.most_at_once[0] >= 2

    same_statistics(
        statistics / "statistics", taxi_run.output_folder("StatisticsGen", "statistics")
    )
    same_rows(
        transform / "transformed_examples",
        taxi_run.output_folder("Transform", "transformed_examples"),
    )
    same_transform_graph(
        transform / "transform_graph", taxi_run.output_folder("Transform", "transform_graph")
    )
