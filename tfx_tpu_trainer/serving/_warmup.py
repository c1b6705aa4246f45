"""Warm-up requests: what TensorFlow Serving replays when it loads a model, before it takes traffic.

A TPU compiles a program for each batch size at its first request of that size, which takes
seconds to minutes. Warm-up requests move that wait in front of the first user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import message as protobuf_message
from tensorflow_serving.apis import prediction_log_pb2

from tfx_tpu_trainer._support.whole_files import file_written_whole
from tfx_tpu_trainer.serving._inspect import MetaGraphDescription
from tfx_tpu_trainer.serving._requests import (
    RequestError,
    predict_log,
    read_records,
    request_inputs,
    write_records,
)

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
"""Where TensorFlow Serving looks, below the version folder."""

_RECORD = re.compile(r"(corrupted|truncated) record at \d+|Is a directory")

MAX_RECORDS = 1000
"""Servers refuse a model with more warm-up requests than this."""

DEFAULT_SIGNATURES = ("serving_default", "predict_raw")
"""The signatures to warm up if every metagraph of the model has them: a server replays the same file whichever
metagraph it loads, and rejects a model that can't answer one of its requests."""


def warmup_requests(
    meta_graphs: Sequence[MetaGraphDescription],
    examples: Sequence[bytes],
    *,
    defaults: Mapping[str, Any] | None = None,
    batch_sizes: Sequence[int] = (1,),
    signature_names: Sequence[str] = DEFAULT_SIGNATURES,
    model_name: str = "model",
) -> tuple[prediction_log_pb2.PredictionLog, ...]:
    """Makes one request of each batch size to each signature.

    Args:
        meta_graphs: The model's metagraphs that are served; of the signatures named, those that
            all of them have are warmed up.
        examples: Serialized raw tf.Examples; taken again from the first one where a batch has more
            rows than there are.
        defaults: As of `request_inputs`. Defaults to `None`.
        batch_sizes: Numbers of rows.
        signature_names: Names of signatures.
        model_name: Name under which the model is served.

    Returns:
        The requests, the smallest batches first.

    Raises:
        RequestError: The rows can't be made a request of a signature.
        ValueError: No rows or metagraph, a batch size below 1, or more than 1,000 requests.
    """
    if not examples or not meta_graphs:
        raise ValueError(
            "warm-up requests are made of real rows for a metagraph; one of them is missing"
        )
    if any(size < 1 for size in batch_sizes):
        raise ValueError(f"batch_sizes={list(batch_sizes)}: each must be at least 1")
    names = [
        name
        for name in signature_names
        if all(name in meta_graph.signatures for meta_graph in meta_graphs)
    ]
    sizes = sorted(set(batch_sizes))
    if len(names) * len(sizes) > MAX_RECORDS:
        raise ValueError(
            f"{len(sizes)} batch sizes for {len(names)} signatures are more than {MAX_RECORDS} "
            "requests, which TensorFlow Serving refuses; name fewer batch sizes"
        )
    requests = []
    for size in sizes:
        rows = [examples[index % len(examples)] for index in range(size)]
        for name in names:
            try:
                inputs = request_inputs(meta_graphs[0].signatures[name], rows, defaults=defaults)
            except RequestError as error:
                raise RequestError(f"no warm-up request for signature {name!r}: {error}") from None
            requests.append(predict_log(inputs, signature_name=name, model_name=model_name))
    return tuple(requests)


def write_warmup(
    path: str | bytes | os.PathLike[str], requests: Sequence[prediction_log_pb2.PredictionLog]
) -> str:
    """Writes warm-up requests into a version folder, whole or not at all.

    Args:
        path: The version folder.
        requests: The requests.

    Returns:
        The file's path.
    """
    target = os.path.join(os.fsdecode(path), WARMUP_FILE)
    with file_written_whole(target) as written:
        write_records(written, requests)
    return target


def read_warmup(path: str | bytes | os.PathLike[str]) -> list[prediction_log_pb2.PredictionLog]:
    """Reads the warm-up requests of a version folder; none where it has no file of them.

    Args:
        path: The version folder.

    Raises:
        ValueError: The file is cut off, or none of warm-up requests.
    """
    file = os.path.join(os.fsdecode(path), WARMUP_FILE)
    if not tf.io.gfile.exists(file):
        return []
    try:
        return read_records(file, prediction_log_pb2.PredictionLog)
    except (tf.errors.OpError, protobuf_message.DecodeError) as error:
        found = _RECORD.search(str(error))
        reason = found[0] if found else str(error).strip().splitlines()[0]
        raise ValueError(
            f"{file} is not a file of warm-up requests ({reason}): remove it, or write it again "
            "with write_warmup."
        ) from None
