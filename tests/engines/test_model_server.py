"""Another consumer of an exported model: TensorFlow's Java binding behind TensorFlow Serving's REST predict."""

import base64
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.engines.java_server import JavaServer, RefusedError, UnavailableError, java_server
from tests.pipeline_runs import PipelineRun
from tests.pipelines.taxi_rows import values
from tests.pipelines.test_taxi_e2e import raw_rows
from tfx_tpu_trainer.components.inputs import MISSING_INTEGER
from tfx_tpu_trainer.serving import describe_saved_model, load_serving, read_warmup

pytestmark = pytest.mark.needs("java", "javac", "mvn")

ROWS = 500
MISSING = {tf.string: "", tf.float32: float("nan"), tf.int64: MISSING_INTEGER}


@pytest.fixture(scope="module")
def server(taxi_run: PipelineRun, tmp_path_factory, note) -> Iterator[JavaServer]:
    folder = tmp_path_factory.mktemp("server")
    try:
        with java_server(taxi_run.report.pushed, folder) as running:
            note(f"TensorFlow Java, with TensorFlow {running.tensorflow}")
            yield running
    except UnavailableError as error:
        note(f"TensorFlow Java: not run, {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def signatures(taxi_run: PipelineRun) -> dict[str, Any]:
    """The same model in Python."""
    return load_serving(taxi_run.report.pushed).signatures


@pytest.fixture(scope="module")
def rows(taxi_run: PipelineRun) -> list[tf.train.Example]:
    """Real rides; their first probabilities differ as much as any."""
    return raw_rows(taxi_run)[:ROWS]


@pytest.fixture(scope="module")
def expected(signatures, rows) -> np.ndarray:
    found = signatures["serving_default"](examples=tf.constant(_serialized(rows)))
    probabilities = found["probability"].numpy()
    assert len(probabilities) == ROWS and np.ptp(probabilities) > 0.5
    return probabilities


def _serialized(rows: list[tf.train.Example]) -> list[bytes]:
    return [row.SerializeToString() for row in rows]


def _as_json(row: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(row).decode()}


def _raw_instance(row: tf.train.Example, specs: dict[str, tf.TensorSpec]) -> dict[str, Any]:
    """A row as one names its raw features in a request: a value or a list of one, by the signature."""
    made = {}
    for name, spec in specs.items():
        value = (values(row, name) or [MISSING[spec.dtype]])[0]
        value = value.decode() if isinstance(value, bytes) else value
        made[name] = value if spec.shape.rank == 1 else [value]
    return made


def test_of_two_metagraphs_the_one_for_cpu_hosts_is_served(taxi_run, server) -> None:
    tags = [each.tags for each in describe_saved_model(taxi_run.report.pushed)]
    assert tags == [("serve",), ("serve", "tpu")]
    assert server.status()["model_version_status"][0]["state"] == "AVAILABLE"


def test_real_rides_as_examples_are_predicted_as_in_python(server, rows, expected) -> None:
    answers = server.predict([_as_json(row) for row in _serialized(rows)])
    found = [answer["probability"] for answer in answers]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_real_rides_by_named_features_are_predicted_as_in_python(
    server, signatures, rows, expected
) -> None:
    specs = signatures["predict_raw"].structured_input_signature[1]
    instances = [_raw_instance(row, specs) for row in rows]
    # JSON's NaN, which TensorFlow Serving reads, replaces missing values of a ride.
    assert "NaN" in json.dumps(instances)
    answers = server.predict(instances, signature_name="predict_raw")
    found = [answer["probability"] for answer in answers]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_models_warmup_requests_are_answered_before_it_serves(
    taxi_run, server, signatures
) -> None:
    requests = [log.predict_log.request for log in read_warmup(taxi_run.report.pushed)]
    assert requests
    assert [each["signature"] for each in server.warmup] == [
        request.model_spec.signature_name for request in requests
    ]
    for request, answered in zip(requests, server.warmup, strict=True):
        examples = tf.constant(tf.make_ndarray(request.inputs["examples"]))
        assert answered["rows"] == len(examples)
        probabilities = signatures["serving_default"](examples=examples)["probability"].numpy()
        found = [each["probability"] for each in answered["predictions"]]
        np.testing.assert_allclose(found, probabilities, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("instances", "request_", "says"),
    [
        ([{"fare": 1.0}], {"signature_name": "predict_raw"}, 'an instance has no "'),
        ([{"b64": ""}], {"signature_name": "none"}, "none"),
        ([{"b64": base64.b64encode(b"no example").decode()}], {}, "Could not parse example"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(server, instances, request_, says) -> None:
    with pytest.raises(RefusedError) as caught:
        server.predict(instances, **request_)
    assert says in str(caught.value)


def test_latency_and_rows_a_second_are_told(server, signatures, rows, note) -> None:
    serialized = _serialized(rows)
    predict = signatures["serving_default"]
    found = []
    for count in (1, ROWS):
        instances = [_as_json(row) for row in serialized[:count]]
        examples = tf.constant(serialized[:count])
        ways = (
            lambda instances=instances: server.predict(instances),
            lambda examples=examples: predict(examples=examples)["probability"].numpy(),
        )
        assert [len(way()) for way in ways] == [count, count]
        found.append([_median_seconds(way, 20) for way in ways])
    (one_java, one_python), (all_java, all_python) = found
    note(
        f"TensorFlow Java over REST: {one_java * 1e3:.1f} ms for one row, {ROWS / all_java:,.0f} rows/s in requests of "
        f"{ROWS}; Python's loader, in its process: {one_python * 1e3:.1f} ms and {ROWS / all_python:,.0f} rows/s"
    )


def _median_seconds(call: Callable[[], object], count: int) -> float:
    readings = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        readings.append(time.perf_counter() - started)
    return statistics.median(readings)
