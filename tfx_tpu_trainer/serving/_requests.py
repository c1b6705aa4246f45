"""Requests to a model, made of raw tf.Examples, as TensorFlow Serving logs and replays them; files of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfx_tpu_trainer.serving._inspect import SignatureDescription, TensorDescription

v1 = tf.compat.v1

_LISTS = ("bytes_list", "float_list", "int64_list")


class RequestError(ValueError):
    """Rows that can't be made a request of a signature."""


def request_inputs(
    signature: SignatureDescription,
    examples: Sequence[bytes],
    *,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Makes the inputs of one request.

    An input with the name of a feature gets that feature's values, one row each. A signature with
    one string input that is not a feature gets the examples as they are.

    Args:
        signature: The signature.
        examples: Serialized raw tf.Examples, one a row.
        defaults: Feature name -> what its values are where a row has none. Defaults to `None`:
            they are missing ones, as `predict_raw` takes them: NaN, the empty string or the least
            int64. Rows with fewer values than others are filled up with missing ones too.

    Returns:
        Input name -> array whose axis 0 is that of the rows; strings are an array of objects.

    Raises:
        RequestError: No input is a feature; or a row has more values, or fewer, than an input's
            fixed shape, or values of another type.
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
    """Whether rows hold, as a value, what stands for a missing one in named tensors.

    An empty string is a value in a tf.Example and a missing one in `predict_raw`: the two
    signatures may then answer differently, and both be right.

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
    """Makes a log entry of a Predict request."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    request.model_spec.signature_name = signature_name
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(request)
    return log


def write_records(path: str, messages: Iterable[Any]) -> None:
    """Writes protos as a TFRecord file, each in its binary form."""
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
    # Only axis 1 can be open.
    inner = [max(1, *map(len, values)) if size is None else size for size in tensor.shape[1:]]
    wanted = int(np.prod(inner, dtype=np.int64))
    # Only where a row may have more or fewer values can some of them be missing.
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


_ROWS_AT_ONCE = 1024


def read_tfrecords(paths: Sequence[str], *, limit: int | None = None) -> list[bytes]:
    """Reads the records of files, one file after the other.

    Args:
        paths: The files; those whose names end with `.gz` are compressed.
        limit: How many records at most. Defaults to `None`, all.

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
        # Not a one-shot iterator, which wants a seed where the module has made TensorFlow's ops deterministic.
        iterator = v1.data.make_initializable_iterator(data)
        batch = iterator.get_next()
        with v1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    found += list(session.run(batch))
                except tf.errors.OutOfRangeError:
                    return found
