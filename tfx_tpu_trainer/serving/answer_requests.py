"""A process that loads the `serve` metagraph and answers requests; started by `check.py`.

`python -m tfx_tpu_trainer.serving.answer_requests LIBRARIES MODEL REQUESTS ANSWERS`, where REQUESTS
is a TFRecord file of PredictionLogs (a warm-up file is one) and ANSWERS becomes one of
PredictResponses, in the same order.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfx_tpu_trainer.serving.requests import read_records, write_records

v1 = tf.compat.v1


def answers(path: str, logs: list[Any]) -> Iterator[predict_pb2.PredictResponse]:
    """Answers requests by the `serve` metagraph, as TensorFlow Serving runs it: in a session.

    Args:
        path: The SavedModel.
        logs: PredictionLogs of Predict requests.
    """
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], path)
        for log in logs:
            request = log.predict_log.request
            signature = meta_graph.signature_def[request.model_spec.signature_name]
            fetched = session.run(
                {key: info.name for key, info in signature.outputs.items()},
                {
                    signature.inputs[key].name: tf.make_ndarray(tensor)
                    for key, tensor in request.inputs.items()
                },
            )
            response = predict_pb2.PredictResponse(model_spec=request.model_spec)
            for key, value in fetched.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            yield response


def _main(libraries: str, path: str, requests: str, answered: str) -> None:
    for name in filter(None, libraries.split(",")):
        importlib.import_module(name)
    logs = read_records(requests, prediction_log_pb2.PredictionLog)
    write_records(answered, answers(path, logs))


if __name__ == "__main__":
    _main(*sys.argv[1:])
