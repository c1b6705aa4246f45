"""Beam's portable road: the pipeline's Beam components on a job service with a pool of worker processes.

The job service is Beam's own, in Python; Flink's and Spark's take the same options.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_data_validation as tfdv
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft
from tensorflow_serving.apis import prediction_log_pb2

from tests.conftest import PipelineRun
from tests.pipelines.beam_components import run_component, taxi_components
from tests.pipelines.portable_beam import PortableBeam, portable_beam

DIRECT = (
    "--runner=DirectRunner",
    "--direct_running_mode=in_memory",
    "--sdk_container_image=of-this-process",
)
SPLITS = ("train", "eval")


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


def _records(folder: Path) -> list[bytes]:
    files = sorted(str(path) for path in folder.glob("*.gz"))
    assert files, folder
    return list(tf.data.TFRecordDataset(files, compression_type="GZIP").as_numpy_iterator())


def _same_rows(found: Path, expected: Path) -> None:
    """Checks that two artifacts of examples hold the same rows, in any order."""
    for split in SPLITS:
        others, floats = _sorted_rows(found / f"Split-{split}")
        expected_others, expected_floats = _sorted_rows(expected / f"Split-{split}")
        assert len(others) > 4_000
        assert others == expected_others
        # A z-score's mean and deviation depend on the order of the rows by their last digits.
        np.testing.assert_allclose(floats, expected_floats, rtol=1e-5, atol=1e-6)


def _sorted_rows(folder: Path) -> tuple[list[Any], np.ndarray]:
    """All values but floats of each row, and all floats one after the other."""
    rows = []
    for record in _records(folder):
        features = tf.train.Example.FromString(record).features.feature
        others: list[Any] = []
        floats: list[float] = []
        for name in sorted(features):
            kind = features[name].WhichOneof("kind")
            values = list(getattr(features[name], kind).value) if kind else []
            if kind == "float_list":
                floats += values
                values = [len(values)]
            others.append((name, str(kind), values))
        rows.append((others, floats))
    rows.sort()
    return [row[0] for row in rows], np.array([value for row in rows for value in row[1]])


def _statistics(folder: Path, split: str) -> dict[str, Any]:
    (dataset,) = tfdv.load_stats_binary(str(folder / f"Split-{split}" / "FeatureStats.pb")).datasets
    return {feature.path.step[0]: feature for feature in dataset.features}


def _taken_sums(feature: Any) -> tuple[float, float]:
    """Mean and standard deviation of a feature's statistics, which are without them afterwards."""
    taken = (feature.num_stats.mean, feature.num_stats.std_dev)
    if feature.HasField("num_stats"):
        feature.num_stats.ClearField("mean")
        feature.num_stats.ClearField("std_dev")
    return taken


def _metrics(folder: Path) -> dict[Any, dict[str, float]]:
    result = tfma.load_eval_result(str(folder))
    return {
        slice_key: {
            name: value["doubleValue"]
            for name, value in outputs[""][""].items()
            if "doubleValue" in value
        }
        for slice_key, outputs in result.slicing_metrics
    }


def _predictions(folder: Path) -> dict[bytes, float]:
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record).predict_log
        for record in _records(folder)
    ]
    return {
        _in_order(log.request.inputs["examples"].string_val[0]): (
            log.response.outputs["probability"].float_val[0]
        )
        for log in logs
    }


def _in_order(row: bytes) -> bytes:
    """Writes a row's features in one order; each process that reads and writes it chooses another."""
    return tf.train.Example.FromString(row).SerializeToString(deterministic=True)


@pytest.mark.e2e
@pytest.mark.sweep
def test_evaluator_and_bulk_inferrer_on_two_worker_processes(
    runs: Runs, taxi_run: PipelineRun, tmp_path: Path
) -> None:
    before = len(runs.beam.started_workers())
    evaluator, bulk_inferrer = runs.at_once("Evaluator", "BulkInferrer")
    assert len(runs.beam.started_workers()) >= before + 2
    assert runs.beam.most_at_once[0] >= 2

    found = _metrics(evaluator / "evaluation")
    expected = _metrics(taxi_run.output_folder("Evaluator", "evaluation"))
    assert found.keys() == expected.keys()
    assert len(found) > 2
    for slice_key, values in expected.items():
        assert found[slice_key] == pytest.approx(values, rel=1e-6, nan_ok=True)

    direct = run_component(
        runs.components["BulkInferrer"], runs.inputs["BulkInferrer"], tmp_path / "direct", DIRECT
    )
    predictions = _predictions(bulk_inferrer / "inference_result")
    of_direct_runner = _predictions(direct / "inference_result")
    assert len(predictions) > 4_000
    # Rows are put together in other batches, and that moves the last digits of a float32.
    assert predictions == pytest.approx(of_direct_runner, rel=1e-5, abs=1e-7)


@pytest.mark.sweep
def test_example_gen_gives_the_same_rows(runs: Runs, taxi_run: PipelineRun) -> None:
    (example_gen,) = runs.at_once("CsvExampleGen")
    _same_rows(example_gen / "examples", taxi_run.output_folder("CsvExampleGen", "examples"))


@pytest.mark.sweep
def test_statistics_gen_and_transform_on_two_worker_processes(
    runs: Runs, taxi_run: PipelineRun
) -> None:
    before = len(runs.beam.started_workers())
    statistics, transform = runs.at_once("StatisticsGen", "Transform")
    assert len(runs.beam.started_workers()) >= before + 2
    assert runs.beam.most_at_once[0] >= 2

    for split in SPLITS:
        found = _statistics(statistics / "statistics", split)
        expected = _statistics(taxi_run.output_folder("StatisticsGen", "statistics"), split)
        assert found.keys() == expected.keys()
        for name, feature in expected.items():
            # Sums, and these come of them, depend on the order of the rows by their last digits.
            assert _taken_sums(found[name]) == pytest.approx(_taken_sums(feature), rel=1e-9)
            assert found[name] == feature

    _same_rows(
        transform / "transformed_examples",
        taxi_run.output_folder("Transform", "transformed_examples"),
    )
    outputs = [
        tft.TFTransformOutput(str(folder))
        for folder in (
            transform / "transform_graph",
            taxi_run.output_folder("Transform", "transform_graph"),
        )
    ]
    assert outputs[0].transformed_feature_spec() == outputs[1].transformed_feature_spec()
    for name in ("payment_type", "company"):
        words = [output.vocabulary_by_name(name) for output in outputs]
        assert words[0] == words[1]
        assert np.size(words[0]) > 1
