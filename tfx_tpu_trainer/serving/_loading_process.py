"""A process that loads the metagraphs of a model as a server would; started by `_answers.py`.

`main` takes MODEL REQUESTS ANSWERS TAGS. REQUESTS is a TFRecord file of PredictionLogs (a warm-up
file is one), which the `serve` metagraph answers; ANSWERS becomes a file of PredictResponses in the
same order, and ANSWERS.json says how long the answers took. TAGS name another metagraph, whose
graph is loaded without running it: TensorFlow then has checked every node, its op, attributes,
types and shapes, and the functions that it calls, which is how far a machine without a TPU gets
with a metagraph for one. REQUESTS or TAGS is empty where that part isn't wanted.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer._support.whole_files import file_written_whole, write_whole
from tfx_tpu_trainer.estimator.extending import tensor_names
from tfx_tpu_trainer.serving._requests import read_records, write_records
from tfx_tpu_trainer.serving._saved_model_file import meta_graph_with, read_saved_model

v1 = tf.compat.v1

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
    """Answers a request, and again until it is known how long that takes."""
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
    """Does what the module's docstring says."""
    if requests:
        logs = read_records(requests, prediction_log_pb2.PredictionLog)
        took: dict[str, dict[str, float]] = {}
        with file_written_whole(answered) as written:
            write_records(written, answers(path, logs, took))
        write_whole(f"{answered}.json", json.dumps(took))
    if tags:
        load_graph(path, tags.split(","))
