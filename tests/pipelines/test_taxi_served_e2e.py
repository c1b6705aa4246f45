"""What takes the taxi pipeline's pushed model, and whether it gives what was trained."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2
from tfx import v1 as tfx
from tfx.components.infra_validator import request_builder
from tfx_bsl.public import tfxio

from pipelines.taxi import model as taxi
from pipelines.taxi.config import TaxiModelSettings
from pipelines.taxi.pipeline import bulk_model_spec, evaluator_config
from tests.conftest import REPOSITORY
from tests.pipeline_runs import TAXI, PipelineRun, completed, run_local
from tests.pipelines.taxi_rows import UNSEEN, random_rides, transform, values
from tests.pipelines.test_taxi_e2e import raw_rows
from tfx_tpu_trainer.components.inputs import MISSING_INTEGER, TransformedInput, vocabulary_sizes
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.serving import load_serving
from tfx_tpu_trainer.workbench.project.metadata import State

pytestmark = pytest.mark.e2e

RIDES = 1_000
MISSING = {tf.string: b"", tf.float32: np.nan, tf.int64: MISSING_INTEGER}


@pytest.fixture(scope="module")
def signatures(taxi_run: PipelineRun) -> dict:
    return load_serving(taxi_run.report.pushed).signatures


@pytest.fixture(scope="module")
def rides(taxi_run: PipelineRun) -> list[tf.train.Example]:
    made = random_rides(raw_rows(taxi_run), RIDES)
    return sorted(made, key=lambda ride: values(ride, "fare"))


@pytest.fixture(scope="module")
def of_estimator(taxi_run, rides, tmp_path_factory) -> np.ndarray:
    """Returns the estimator's predictions from its last checkpoint for Transform's output."""
    transform_graph = str(taxi_run.output_folder("Transform", "transform_graph"))
    transformed = TransformedInput(
        transform_graph_path=transform_graph,
        file_patterns=[transform(rides, transform_graph, tmp_path_factory.mktemp("rides"))],
        dataset_factory=_open,
        label_key="big_tip",
    ).eval_fn()
    estimator = tpu.TPUEstimator(
        taxi.model_fn,
        config=tpu.RunConfig(model_dir=str(taxi_run.output_folder("TpuTrainer", "model_run"))),
        params={
            **TaxiModelSettings().model_dump(),
            "vocabulary_sizes": vocabulary_sizes(transform_graph),
        },
        use_tpu=False,
        train_batch_size=128,
        predict_batch_size=128,
    )
    probability = np.array([row["probability"] for row in estimator.predict(transformed)])
    fares = np.concatenate([x["fare_scaled"] for x, _ in transformed({"batch_size": 128})])
    assert len(np.unique(fares)) == RIDES
    return probability[np.argsort(fares)]


def _open(files, options, schema):
    reader = tfxio.TFExampleRecord(file_pattern=files, schema=schema, telemetry_descriptors=["t"])
    return reader.TensorFlowDataset(options)


def test_random_rides_miss_values_and_have_unseen_words(rides, of_estimator) -> None:
    for name in {*taxi.NUMBERS, *taxi.BUCKETED, *taxi.IDS, *UNSEEN} - {"fare"}:
        assert sum(not values(ride, name) for ride in rides) > RIDES / 20, name
    for name, word in UNSEEN.items():
        assert sum(word in values(ride, name) for ride in rides) > RIDES / 20, name
    assert np.ptp(of_estimator) > 0.5


def test_serialized_rides_are_predicted_as_by_the_estimator(
    signatures, rides, of_estimator
) -> None:
    examples = tf.constant([ride.SerializeToString() for ride in rides])
    found = signatures["serving_default"](examples=examples)["probability"].numpy()
    np.testing.assert_allclose(found, of_estimator, rtol=0, atol=1e-6)


def test_named_raw_tensors_are_predicted_as_by_the_estimator(
    signatures, rides, of_estimator
) -> None:
    predict_raw = signatures["predict_raw"]
    specs = predict_raw.structured_input_signature[1]
    inputs = {name: _as_tensor(rides, name, spec) for name, spec in specs.items()}
    # The model's raw features only: not the tips, nor what Transform leaves aside.
    assert set(inputs) == {*taxi.NUMBERS, *taxi.BUCKETED, *taxi.IDS, *UNSEEN}
    found = predict_raw(**inputs)["probability"].numpy()
    np.testing.assert_allclose(found, of_estimator, rtol=0, atol=1e-6)


def _as_tensor(rides: list[tf.train.Example], name: str, spec: tf.TensorSpec) -> tf.Tensor:
    rows = [values(ride, name)[:1] or [MISSING[spec.dtype]] for ride in rides]
    return tf.constant([row[0] for row in rows] if spec.shape.rank == 1 else rows, spec.dtype)


@pytest.mark.sweep
def test_bulk_inferrer_predicts_with_the_model(taxi_run: PipelineRun, signatures) -> None:
    # In the same root, so that the rest comes from the cache.
    run = completed(run_local("taxi", taxi_run.root, *TAXI, "bulk_inference.splits=[eval]"))
    assert run.statuses["BulkInferrer"].state is State.COMPLETE
    assert run.statuses["TpuTrainer"].state is State.CACHED
    folder = run.output_folder("BulkInferrer", "inference_result")
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record).predict_log
        for record in tf.data.TFRecordDataset(
            [str(path) for path in folder.glob("*.gz")], compression_type="GZIP"
        ).as_numpy_iterator()
    ]
    assert len(logs) == run.report.eval_examples
    examples = [log.request.inputs["examples"].string_val[0] for log in logs]
    rows = [tf.train.Example.FromString(example) for example in examples]
    assert _serialized(rows) == _serialized(raw_rows(taxi_run))
    found = np.array([log.response.outputs["probability"].float_val[0] for log in logs])
    expected = signatures["serving_default"](examples=tf.constant(examples))["probability"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def _serialized(rows: Iterable[tf.train.Example]) -> list[bytes]:
    # Features of a row are a map, which each process writes in its own order.
    return sorted(row.SerializeToString(deterministic=True) for row in rows)


def _saved_model_cli(*words: str) -> str:
    program = Path(sys.executable).with_name("saved_model_cli")
    run = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return run.stdout


@pytest.mark.sweep
def test_saved_model_cli_shows_it(taxi_run: PipelineRun) -> None:
    shown = _saved_model_cli("show", "--dir", taxi_run.report.pushed, "--all")
    tag_sets = re.findall(r"MetaGraphDef with tag-set: '(.*)' contains", shown)
    assert sorted(tag_sets) == ["serve", "serve, tpu"]
    assert {"serving_default", "predict_raw", "transform_features"} <= set(
        re.findall(r"signature_def\['(\w+)'\]", shown)
    )


@pytest.mark.sweep
def test_saved_model_cli_runs_it(taxi_run: PipelineRun, signatures, rides) -> None:
    row = tf.train.Example.FromString(rides[0].SerializeToString())
    for name in UNSEEN:
        # The command takes strings of ASCII only, and no feature without values.
        row.features.feature.pop(name, None)
    names = sorted(name for name in row.features.feature if values(row, name))
    example = {name: values(row, name) for name in names}
    shown = _saved_model_cli(
        *(
            "run",
            "--dir",
            taxi_run.report.pushed,
            "--tag_set",
            "serve",
            "--signature_def",
            "serving_default",
        ),
        *("--input_examples", f"examples=[{example!r}]"),
    )
    found = float(re.search(r"output key probability:\n\[(.*)\]", shown).group(1))
    examples = tf.constant([row.SerializeToString()])
    expected = signatures["serving_default"](examples=examples)["probability"].numpy()[0]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def listings(taxi_run: PipelineRun, rides, tmp_path_factory) -> dict:
    """The names that the listings of the documentation leave behind."""
    page = (REPOSITORY / "docs" / "serving.md").read_text(encoding="utf-8")
    section = page.split("\n## Consumers\n", 1)[1].split("\n## ", 1)[0]
    names = {
        "path": taxi_run.report.pushed,
        "copy_path": str(tmp_path_factory.mktemp("copy") / "1"),
        "examples": [ride.SerializeToString() for ride in rides[:5]],
    }
    for listing in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        if "tf.lite.Interpreter" in listing:
            names["run_on_device"] = listing
        else:
            exec(compile(listing, "docs/serving.md", "exec"), names)
    return names


def test_the_listings_of_the_documentation_predict(listings) -> None:
    probability = listings["probability"].numpy()
    assert probability.shape == (5,)
    assert listings["from_raw"].shape == (2,)
    copied = tf.saved_model.load(listings["copy_path"]).signatures["serving_default"]
    from_copy = copied(examples=tf.constant(listings["examples"]))["probability"]
    np.testing.assert_array_equal(from_copy, probability)


def test_the_listing_of_tflite_predicts(listings) -> None:
    exec(compile(listings["run_on_device"], "docs/serving.md", "exec"), listings)
    np.testing.assert_allclose(
        listings["on_device"], listings["probability"].numpy(), rtol=0, atol=1e-6
    )


def test_the_documented_specs_are_those_of_the_pipeline(listings) -> None:
    (model_spec,) = evaluator_config("big_tip").model_specs
    assert listings["eval_model"] == model_spec
    assert listings["bulk_model"] == bulk_model_spec()


def test_infra_validator_builds_requests_of_the_model(taxi_run: PipelineRun, listings) -> None:
    model = tfx.types.standard_artifacts.Model()
    model.uri = str(taxi_run.output_folder("TpuTrainer", "model"))
    examples = tfx.types.standard_artifacts.Examples()
    examples.uri = str(taxi_run.output_folder("CsvExampleGen", "examples"))
    examples.split_names = '["train", "eval"]'
    requests = request_builder.build_requests("taxi", model, examples, listings["requests"])
    assert len(requests) == 3
    for request in requests:
        assert request.model_spec.signature_name == "serving_default"
        (example,) = request.inputs["examples"].string_val
        assert values(tf.train.Example.FromString(example), "fare")


def test_the_metagraph_for_tpu_hosts_is_refused_here_for_its_ops_alone(listings) -> None:
    path, examples = listings["path"], listings["examples"]
    with pytest.raises(tf.errors.OpError, match="ConfigureDistributedTPU"):
        listings["predict_on_tpu"](path, examples, "")
    # What the listing does after that, up to the run.
    v1 = tf.compat.v1
    config = v1.ConfigProto()
    config.graph_options.place_pruned_graph = True
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        meta_graph = v1.saved_model.load(session, ["serve", "tpu"], path)
        signature = meta_graph.signature_def["serving_default"]
        outputs = {name: info.name for name, info in signature.outputs.items()}
        assert set(outputs) == {"probability", "logits"}
        with pytest.raises(tf.errors.OpError, match=r"TPU(OrdinalSelector|PartitionedCall)"):
            session.run(outputs, {signature.inputs["examples"].name: examples})
