"""The taxi pipeline's Beam components give on Spark what they give here."""

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines import java_server
from tests.engines.beam_processes import taxi_inputs
from tests.engines.spark.job_server import SparkJobServer
from tests.pipeline_runs import PipelineRun
from tests.pipelines.beam_results import (
    run_component,
    same_metrics,
    same_rows,
    same_statistics,
    same_transform_graph,
    taxi_components,
)

BEAM = importlib.metadata.version("apache-beam")
pytestmark = pytest.mark.needs("java", "mvn")

Run = Callable[[str], Path]


@pytest.fixture(scope="module")
def run(taxi_run: PipelineRun, tmp_path_factory, note) -> Iterator[Run]:
    """Runs a component on Spark; gives its outputs' folder."""
    try:
        libraries = java_server.fetch(Path(__file__).with_name("pom.xml"), beam_version=BEAM)
    except java_server.UnavailableError as error:
        note(f"Spark: not run, {error}")
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("spark")
    components, inputs = taxi_components(folder / "root"), taxi_inputs(taxi_run)
    with SparkJobServer(folder / "server", libraries, threads=2) as server:
        server.start_all()
        (job_server,) = libraries.glob("beam-runners-spark-*.jar")
        (spark,) = libraries.glob("spark-core_*.jar")
        note(
            f"Spark's embedded master ({spark.stem}) in {job_server.stem}, and workers of Beam {BEAM}"
        )

        def run_one(name: str) -> Path:
            outputs = Path(tempfile.mkdtemp(prefix=name, dir=folder))
            arguments = server.arguments(parallelism=2)
            run_component(components[name], inputs[name], outputs, arguments)
            assert server.started_workers()
            return outputs

        yield run_one


def test_statistics_are_the_same(run: Run, taxi_run: PipelineRun) -> None:
    found = run("StatisticsGen")
    same_statistics(found / "statistics", taxi_run.output_folder("StatisticsGen", "statistics"))


def test_the_evaluation_is_the_same(run: Run, taxi_run: PipelineRun) -> None:
    found = run("Evaluator")
    same_metrics(found / "evaluation", taxi_run.output_folder("Evaluator", "evaluation"))


# The longest of the three by far; `make test-engines` has it on Flink.
@pytest.mark.sweep
def test_the_transformed_rows_are_the_same(run: Run, taxi_run: PipelineRun) -> None:
    found = run("Transform")
    for key, same in (
        ("transformed_examples", same_rows),
        ("transform_graph", same_transform_graph),
    ):
        same(found / key, taxi_run.output_folder("Transform", key))
