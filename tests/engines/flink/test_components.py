"""The taxi pipeline's Beam components give on a Flink cluster what they give here, also when a TaskManager dies."""

import concurrent.futures
import dataclasses
import importlib.metadata
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import tensorflow_data_validation as tfdv

from tests.engines import java_server
from tests.engines.beam_processes import taxi_inputs
from tests.engines.flink.cluster import FlinkCluster
from tests.pipeline_runs import PipelineRun
from tests.pipelines.beam_results import (
    run_component,
    same_metrics,
    same_rows,
    same_statistics,
    same_transform_graph,
    taxi_components,
)
from tfx_tpu_trainer.workbench.project.beam import beam_problem, job_problem
from tfx_tpu_trainer.workbench.run.run_child import one_line

BEAM = importlib.metadata.version("apache-beam")
pytestmark = pytest.mark.needs("java", "mvn")


@dataclasses.dataclass(frozen=True)
class Runs:
    """The components' runs on the cluster, with the inputs that they had in the local run."""

    cluster: FlinkCluster
    components: dict[str, Any]
    inputs: dict[str, dict[str, Path]]
    folder: Path

    def run(self, name: str, *words: str, parallelism: int) -> Path:
        """Runs a component, with more Beam arguments if need be; gives its outputs' folder."""
        arguments = (*self.cluster.arguments(parallelism=parallelism), *words)
        folder = Path(tempfile.mkdtemp(prefix=name, dir=self.folder))
        return run_component(self.components[name], self.inputs[name], folder, arguments)

    def running_job(self) -> str:
        """The path of the only job that runs, in the JobManager's REST API."""
        jobs = self.cluster.ask("jobs/overview")["jobs"]
        (job,) = (job for job in jobs if job["state"] == "RUNNING")
        return f"jobs/{job['jid']}"


@pytest.fixture(scope="session")
def libraries(note) -> Path:
    """Flink's and Beam's, of this environment's Beam where that can be had."""
    try:
        return java_server.fetch(Path(__file__).with_name("pom.xml"), beam_version=BEAM)
    except java_server.UnavailableError as error:
        note(f"Flink: not run, {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def runs(taxi_run: PipelineRun, libraries, tmp_path_factory, note) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("flink")
    with FlinkCluster(folder / "cluster", libraries) as cluster:
        cluster.start_all()
        (job_server,) = libraries.glob("beam-runners-flink-*.jar")
        note(
            f"Flink {cluster.ask('config')['flink-version']}, a JobManager and two TaskManagers, with "
            f"{job_server.stem} and workers of Beam {BEAM}"
        )
        yield Runs(
            cluster=cluster,
            components=taxi_components(folder / "root"),
            inputs=taxi_inputs(taxi_run),
            folder=folder,
        )


def test_statistics_and_the_schema_made_of_them_are_the_same(runs, taxi_run) -> None:
    found = runs.run("StatisticsGen", parallelism=2) / "statistics"
    same_statistics(found, taxi_run.output_folder("StatisticsGen", "statistics"))
    # Both TaskManagers had a part in it.
    assert all(runs.cluster.started_workers(number) for number in (1, 2))

    statistics = tfdv.load_stats_binary(str(found / "Split-train" / "FeatureStats.pb"))
    schema_gen = taxi_run.output_folder("SchemaGen", "schema")
    expected = tfdv.load_schema_text(str(schema_gen / "schema.pbtxt"))
    inferred = tfdv.infer_schema(statistics, infer_feature_shape=False)
    assert {each.name: each.type for each in inferred.feature} == {
        each.name: each.type for each in expected.feature
    }


def test_the_evaluation_is_the_same(runs, taxi_run) -> None:
    found = runs.run("Evaluator", parallelism=1)
    same_metrics(found / "evaluation", taxi_run.output_folder("Evaluator", "evaluation"))


def test_with_a_task_manager_killed_the_transformed_rows_are_the_same(runs, taxi_run) -> None:
    cluster = runs.cluster
    before = {number: len(cluster.started_workers(number)) for number in (1, 2)}

    def at_work() -> list[int]:
        return [
            number for number in (1, 2) if len(cluster.started_workers(number)) > before[number]
        ]

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        running = threads.submit(runs.run, "Transform", parallelism=1)
        cluster.wait_for(at_work, "worker of Transform")
        job = runs.running_job()
        # In the middle: some tasks have ended, and their results are lost, too.
        cluster.wait_for(lambda: cluster.ask(job)["status-counts"]["FINISHED"] >= 5, "task's end")
        (number,) = at_work()
        assert cluster.ask(job)["state"] == "RUNNING"
        os.kill(cluster.task_managers[number].pid, signal.SIGKILL)
        transform = running.result()

    ended = cluster.ask(job)
    assert ended["state"] == "FINISHED"
    # When it began again.
    assert ended["timestamps"]["RESTARTING"] > ended["timestamps"]["CREATED"]
    assert at_work() == [1, 2]
    same_rows(
        transform / "transformed_examples",
        taxi_run.output_folder("Transform", "transformed_examples"),
    )
    same_transform_graph(
        transform / "transform_graph", taxi_run.output_folder("Transform", "transform_graph")
    )


def test_pools_that_have_died_end_a_job_with_one_line(runs) -> None:
    for pool in runs.cluster.pools.values():
        pool.kill()
        pool.wait()
    with pytest.raises(RuntimeError) as caught:
        runs.run("StatisticsGen", "--number_of_execution_retries=0", parallelism=1)
    arguments = runs.cluster.arguments(parallelism=1)
    said = one_line(caught.value)
    problem = job_problem(arguments, said)
    assert problem is not None, said
    assert "no worker pool at --environment_config=" in problem


def test_a_job_server_whose_flink_is_not_there_ends_a_job_with_one_line(
    libraries, tmp_path
) -> None:
    with FlinkCluster(tmp_path / "cluster", libraries) as cluster:
        cluster.start_job_server()
        arguments = cluster.arguments(parallelism=1)
        # The server itself exists.
        assert beam_problem(arguments) is None
        with pytest.raises(RuntimeError) as caught, beam.Pipeline(argv=list(arguments)) as pipeline:
            pipeline | beam.Create([1])
    said = one_line(caught.value)
    problem = job_problem(arguments, said)
    assert problem is not None, said
    assert "reached no cluster at its --flink-master" in problem
