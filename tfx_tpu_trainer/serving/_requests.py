"""Makes requests from raw tf.Examples, and warm-up requests that a server replays before it takes traffic.

A TPU compiles a program for each batch size at its first request of that size, which takes seconds to minutes. Warm-up
requests move that wait before the first user's request.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message as protobuf_message
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfx_tpu_trainer._support.whole_files import file_written_whole
from tfx_tpu_trainer.serving._inspect import (
    MetaGraphDescription,
    SignatureDescription,
    TensorDescription,
)

v1 = tf.compat.v1

_LISTS = ("bytes_list", "float_list", "int64_list")

_ROWS_AT_ONCE = 1024

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
"""The path below the version folder where TensorFlow Serving looks for requests."""

_RECORD = re.compile(r"(corrupted|truncated) record at \d+|Is a directory")

MAX_RECORDS = 1000
"""Servers reject a model with more warm-up requests than this."""

DEFAULT_SIGNATURES = ("serving_default", "predict_raw")
"""The signatures to warm up if every metagraph of the model has them: a server replays the same file whichever
metagraph it loads, and rejects a model that can't answer one of its requests."""


class RequestError(ValueError):
    """Rows that can't become a request of a signature."""


def request_inputs(
    signature: SignatureDescription,
    examples: Sequence[bytes],
    *,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Makes the inputs of one request.

    An input with the name of a feature gets that feature's values, one row each. A signature with
    one string input that is not a feature gets the unparsed examples.

    Args:
        signature: The signature.
        examples: Serialized raw tf.Examples, one per row.
        defaults: Feature name -> its values in a row without any. Defaults to `None`: missing values, in the form of
            `predict_raw`: NaN, the empty string or the least int64. Rows with fewer values than others are padded with
            missing ones, too.

    Returns:
        Input name -> array whose axis 0 is that of the rows; strings are an array of objects.

    Raises:
        RequestError: If no input is a feature, or a row has more or fewer values than an input's fixed shape, or values
            of another type.
    """
    rows = [tf.train.Example.FromString(example).features.feature for example in examples]
    known = {*(defaults or {}), *(name for row in rows for name in row)}
    if len(signature.inputs) == 1:
        [(key, tensor)] = signature.inputs.items()
        if tensor.dtype == "string" and key not in known:
            return {key: np.array(list(examples), dtype=object)}
    if not known.intersection(signature.inputs):
        raise RequestError(
            f"none of its inputs ({', '.join(sorted(signature.inputs))}) is a feature of the rows"
        )
    return {
        key: _column(key, tensor, rows, (defaults or {}).get(key))
        for key, tensor in signature.inputs.items()
    }


def says_missing(signature: SignatureDescription, examples: Sequence[bytes]) -> bool:
    """Returns whether a row has a value that means "missing" in named tensors.

    An empty string is a value in a tf.Example but a missing one in `predict_raw`: the two signatures may then give
    different answers that are both right.

    Args:
        signature: The signature.
        examples: Serialized raw tf.Examples.
    """
    rows = [tf.train.Example.FromString(example).features.feature for example in examples]
    return any(
        value in (b"", tf.int64.min) or value != value
        for row in rows
        for key in signature.inputs
        if key in row
        for value in _values(row[key])
    )


def predict_log(
    inputs: Mapping[str, np.ndarray], *, signature_name: str, model_name: str
) -> prediction_log_pb2.PredictionLog:
    """Makes the log entry of a Predict request."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature_name
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(request)
    return log


def write_records(path: str, messages: Iterable[Any]) -> None:
    """Writes protos as a TFRecord file."""
    with tf.io.TFRecordWriter(path) as writer:
        for message in messages:
            writer.write(message.SerializeToString())


def read_records(path: str, kind: Any) -> list[Any]:
    """Reads protos of a class from a TFRecord file."""
    return [kind.FromString(record) for record in read_tfrecords([path])]


def _column(key: str, tensor: TensorDescription, rows: Sequence[Any], default: Any) -> np.ndarray:
    if not tensor.shape or None in tensor.shape[2:]:
        raise RequestError(f"its input {key!r} is {tensor}, to which rows can't be fitted")
    values = [list(_values(row[key])) if key in row else [] for row in rows]
    # Example: rows of 1 and 3 values for an input [?, ?] become [2, 3], with two missing values in the first row; for
    # an input [?, 2] both are rejected. Only axis 1 can be open.
    inner = [max(1, *map(len, values)) if size is None else size for size in tensor.shape[1:]]
    wanted = int(np.prod(inner, dtype=np.int64))
    # Values can be missing only where rows may differ in length.
    fills_up = len(tensor.shape) == 1 or tensor.shape[1] is None
    for row in values:
        if not row and default is not None:
            row.extend(np.ravel(default))
        if fills_up:
            row.extend([_missing(tensor.dtype)] * (wanted - len(row)))
        if len(row) != wanted:
            raise RequestError(
                f"its input {key!r} ({tensor}) takes {wanted} values per row, but a row has "
                f"{len(row)}"
            )
    dtype = object if tensor.dtype == "string" else tf.dtypes.as_dtype(tensor.dtype).as_numpy_dtype
    try:
        return np.array(values, dtype=dtype).reshape(len(rows), *inner)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"its input {key!r} ({tensor}) doesn't take a row's values: {error}"
        ) from None


def _missing(dtype: str) -> Any:
    if dtype == "string":
        return b""
    kind = tf.dtypes.as_dtype(dtype)
    return float("nan") if kind.is_floating else kind.min


def _values(feature: tf.train.Feature) -> Sequence[Any]:
    for kind in _LISTS:
        if feature.HasField(kind):
            return getattr(feature, kind).value
    return ()


def read_tfrecords(paths: Sequence[str], *, limit: int | None = None) -> list[bytes]:
    """Reads the records of files, one file after the other.

    Args:
        paths: The files; those whose names end with `.gz` are compressed.
        limit: The most records to read. Defaults to `None`, all.

    Returns:
        The records.
    """
    found: list[bytes] = []
    for path in paths:
        left = None if limit is None else limit - len(found)
        if left != 0:
            found += _read(path, left)
    return found


def _read(path: str, limit: int | None) -> list[bytes]:
    found: list[bytes] = []
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        data = tf.data.TFRecordDataset(path, "GZIP" if path.endswith(".gz") else "")
        data = data.take(-1 if limit is None else limit).batch(_ROWS_AT_ONCE)
        # A one-shot iterator would require a seed if the module made TensorFlow's ops deterministic.
        iterator = v1.data.make_initializable_iterator(data)
        batch = iterator.get_next()
        with v1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    found += list(session.run(batch))
                except tf.errors.OutOfRangeError:
                    return found


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
        meta_graphs: The model's metagraphs that are served; only signatures that all of them have are warmed up.
        examples: Serialized raw tf.Examples; they are repeated if a batch has more rows.
        defaults: As in `request_inputs`. Defaults to `None`.
        batch_sizes: Numbers of rows.
        signature_names: Names of signatures.
        model_name: Name under which the model is served.

    Returns:
        The requests, the smallest batches first.

    Raises:
        RequestError: If the rows can't become a request to a signature.
        ValueError: If there are no rows or metagraphs, a batch size is below 1, or there are more than 1,000 requests.
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
    """Reads the warm-up requests of a version folder; none if it has no file of them.

    Args:
        path: The version folder.

    Raises:
        ValueError: If the file is truncated, or does not contain warm-up requests.
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
