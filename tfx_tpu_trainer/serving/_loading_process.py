"""Loads an exported model in a fresh process as a server would, and asks it: `load_fresh` here, `main` there.

`main` takes MODEL REQUESTS ANSWERS TAGS. REQUESTS is a TFRecord file of PredictionLogs (a warm-up file is one), which
the `serve` metagraph answers; ANSWERS becomes a file of PredictResponses in the same order, and ANSWERS.json says how
long the answers took. TAGS name another metagraph, whose graph is loaded without running it: TensorFlow then has
checked every node, its op, attributes, types and shapes, and the functions that it calls, which is how far a machine
without a TPU gets with a metagraph for one. REQUESTS or TAGS is empty where that part isn't wanted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer._support.whole_files import file_written_whole, write_whole
from tfx_tpu_trainer.estimator.extending import tensor_names
from tfx_tpu_trainer.serving._fresh_process import FreshProcess, FreshProcessError
from tfx_tpu_trainer.serving._requests import predict_log, read_records, write_records
from tfx_tpu_trainer.serving._saved_model_file import meta_graph_with, read_saved_model

v1 = tf.compat.v1

Answers = Mapping[str, Mapping[str, np.ndarray]]
"""Signature name -> output name -> array."""

LOADING_PROCESS = "tfx_tpu_trainer.serving._loading_process"
"""The module to run in the `FreshProcess` passed to `load_fresh`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows whose predictions are known.

    Attributes:
        inputs: Signature name -> input name -> array: the same rows for each signature.
        predictions: Output name -> array: what the estimator predicts for these rows.
    """

    inputs: Mapping[str, Mapping[str, np.ndarray]]
    predictions: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latency:
    """How long a signature took to answer the check's request, in a session of the checking process.

    Attributes:
        signature: Its name.
        rows: Rows of the request.
        first_seconds: The first answer, which may compile and allocate.
        median_seconds: The median of those after it.
        repeats: How many those were.
    """

    signature: str
    rows: int
    first_seconds: float
    median_seconds: float
    repeats: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """How far a fresh process got with a model."""

    # What the `serve` metagraph answered; `None` where it could not, or was not asked.
    answers: Answers | None = None
    no_answers: str | None = None  # why it could not be loaded and asked; `None` where it could
    # Why the other metagraph's graph could not be loaded; `None` where it could.
    no_graph: str | None = None
    latencies: tuple[Latency, ...] = ()  # how long the answers took


def load_fresh(
    path: str,
    *,
    inputs: Mapping[str, Mapping[str, np.ndarray]] | None,
    tags: Sequence[str] = (),
    timeout_seconds: float,
    process: FreshProcess | None = None,
) -> Loaded:
    """Loads a model's metagraphs in a fresh process, and serves rows by the `serve` metagraph.

    One process does both, as most of its time goes into importing TensorFlow. Where it ends before
    it has come to the second metagraph, another one loads that.
    """
    with tempfile.TemporaryDirectory(prefix="serving-check-") as folder:
        requests, answered = os.path.join(folder, "requests"), os.path.join(folder, "answers")

        def run(given: list[str], started: FreshProcess | None = None) -> str | None:
            try:
                with started or FreshProcess(LOADING_PROCESS) as running:
                    running.run(given, timeout_seconds=timeout_seconds)
            except FreshProcessError as error:
                return str(error)
            return None

        if inputs is not None:
            logs = [
                predict_log(of, signature_name=key, model_name="") for key, of in inputs.items()
            ]
            write_records(requests, logs)
        asked = inputs is not None
        problem = run([path, requests if asked else "", answered, ",".join(tags)], process)
        if not asked:
            return Loaded(no_graph=problem)
        if not os.path.exists(answered):
            alone = run([path, "", "", ",".join(tags)]) if tags else None
            return Loaded(no_answers=problem, no_graph=alone)
        responses = read_records(answered, predict_pb2.PredictResponse)
        took = _read_json(f"{answered}.json")
    assert inputs is not None
    answers = {
        name: {key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}
        for name, response in zip(inputs, responses, strict=True)
    }
    latencies = tuple(
        Latency(
            signature=name,
            rows=max((len(value) for value in inputs[name].values() if np.ndim(value)), default=1),
            first_seconds=seconds["first"],
            median_seconds=seconds["median"],
            repeats=int(seconds["repeats"]),
        )
        for name, seconds in took.items()
    )
    return Loaded(answers=answers, no_graph=problem, latencies=latencies)


def _read_json(path: str) -> dict[str, Any]:
    # A process that ended after its answers may have left none.
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# A request is sent so often, and for so long, to see how long an answer takes once everything is warm.
_REPEATS, _REPEAT_SECONDS = 10, 0.25


def answers(
    path: str, logs: list[Any], took: dict[str, dict[str, float]]
) -> Iterator[predict_pb2.PredictResponse]:
    """Answers requests by the `serve` metagraph, as TensorFlow Serving runs it: in a session."""
    # A generator that is left half-way keeps what it is in: the graph must not be the default at a yield.
    with contextlib.closing(v1.Session(graph=tf.Graph())) as session:
        load = without_notice(v1.saved_model.load)
        with session.graph.as_default():
            meta_graph = load(session, [tf.saved_model.SERVING], path)
        for log in logs:
            request = log.predict_log.request
            name = request.model_spec.signature_name
            signature = meta_graph.signature_def[name]
            answer = session.make_callable(
                {key: info.name for key, info in signature.outputs.items()},
                [signature.inputs[key].name for key in request.inputs],
            )
            given = [tf.make_ndarray(tensor) for tensor in request.inputs.values()]
            fetched, took[name] = timed(lambda: answer(*given))  # noqa: B023
            response = predict_pb2.PredictResponse(model_spec=request.model_spec)
            for key, value in fetched.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            yield response


def timed(answer: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Answers a request, and again for a while; returns the first answer and the seconds."""
    begun = time.perf_counter()
    answered = answer()
    seconds = [time.perf_counter() - begun]
    while len(seconds) == 1 or (len(seconds) <= _REPEATS and sum(seconds[1:]) < _REPEAT_SECONDS):
        begun = time.perf_counter()
        answer()
        seconds.append(time.perf_counter() - begun)
    again = seconds[1:]
    return answered, {
        "first": seconds[0],
        "median": statistics.median(again),
        "repeats": len(again),
    }


def load_graph(path: str, tags: list[str]) -> None:
    """Loads a metagraph's graph, and finds the tensors of its signatures."""
    meta_graph = meta_graph_with(read_saved_model(path), tags)
    if meta_graph is None:
        raise ValueError(f"{path} has no metagraph with the tags {tags}")
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(meta_graph)
        for signature in meta_graph.signature_def.values():
            for info in (*signature.inputs.values(), *signature.outputs.values()):
                for name in tensor_names(info):
                    graph.get_tensor_by_name(name)


def main(path: str, requests: str, answered: str, tags: str) -> None:
    """Runs in the fresh process; the module's docstring has the arguments."""
    if requests:
        logs = read_records(requests, prediction_log_pb2.PredictionLog)
        took: dict[str, dict[str, float]] = {}
        with file_written_whole(answered) as written:
            write_records(written, answers(path, logs, took))
        write_whole(f"{answered}.json", json.dumps(took))
    if tags:
        load_graph(path, tags.split(","))
