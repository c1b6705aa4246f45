"""What the estimator predicts for the rows that the exported model is going to be asked about."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.component.serving_rows import ServingRows
from tfx_tpu_trainer.estimator import Estimator
from tfx_tpu_trainer.estimator.export.receivers import SINGLE_RECEIVER_NAME, HostPrediction
from tfx_tpu_trainer.serving import (
    MetaGraphDescription,
    RequestError,
    Sample,
    SignatureDescription,
    TensorDescription,
)
from tfx_tpu_trainer.serving.requests import request_inputs, says_missing

v1 = tf.compat.v1

_logger = logging.getLogger(__name__)

# The key under which a lone tensor of predictions is exported.
_LONE_PREDICTION = "output"


class NoSampleError(ValueError):
    """Rows that can't be sent through the receiver, with the reason."""


def receiver_inputs(receiver_fn: Callable[[], Any]) -> SignatureDescription:
    """Describes what a receiver takes, as a signature without outputs.

    Args:
        receiver_fn: A serving_input_receiver_fn.
    """
    with tf.Graph().as_default():
        tensors = _named(receiver_fn().receiver_tensors)
        return SignatureDescription(
            inputs={
                key: TensorDescription(
                    tensor.dtype.name,
                    None if tensor.shape.rank is None else tuple(tensor.shape.as_list()),
                )
                for key, tensor in tensors.items()
            },
            outputs={},
        )


def take_sample(
    rows: ServingRows,
    *,
    receiver_fn: Callable[[], Any],
    meta_graph: MetaGraphDescription,
    estimator: Estimator,
    checkpoint_path: str | None,
) -> Sample:
    """Predicts rows with the estimator, from the features that the receiver makes of them.

    Args:
        rows: The rows.
        receiver_fn: The receiver that the model was exported with.
        meta_graph: The exported metagraph `serve`.
        estimator: Predicts, on the host: a TPU rounds otherwise.
        checkpoint_path: The checkpoint that was exported.

    Returns:
        The rows as inputs of each signature that predicts, and the predictions.

    Raises:
        NoSampleError: The receiver takes something else than these rows.
    """
    try:
        inputs = request_inputs(receiver_inputs(receiver_fn), rows.examples, defaults=rows.defaults)
    except RequestError as error:
        raise NoSampleError(f"{rows.origin} don't fit the receiver: {error}") from None
    features, host_signatures = _features(receiver_fn, inputs, rows)
    return Sample(
        inputs=_inputs_by_signature(meta_graph, inputs, host_signatures, rows),
        predictions=_predictions(estimator, features, checkpoint_path),
    )


def _features(
    receiver_fn: Callable[[], Any], inputs: Mapping[str, np.ndarray], rows: ServingRows
) -> tuple[Any, Mapping[str, Any]]:
    with tf.Graph().as_default(), v1.Session() as session:
        receiver = receiver_fn()
        tensors = _named(receiver.receiver_tensors)
        fed = {tensors[key]: value for key, value in inputs.items()}
        try:
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            features = session.run(receiver.features, fed)
        except tf.errors.OpError as error:
            message = error.message.splitlines()[0]
            raise NoSampleError(f"the receiver fails on {rows.origin}: {message}") from None
        except (TypeError, ValueError) as error:
            # A sparse or ragged input, which a tf.Example does not become by itself.
            raise NoSampleError(f"{rows.origin} can't be fed to the receiver: {error}") from None
        return features, getattr(receiver, "host_signatures", None) or {}


def _named(tensors: Any) -> Mapping[str, Any]:
    return tensors if isinstance(tensors, Mapping) else {SINGLE_RECEIVER_NAME: tensors}


def _inputs_by_signature(
    meta_graph: MetaGraphDescription,
    inputs: Mapping[str, np.ndarray],
    host_signatures: Mapping[str, Any],
    rows: ServingRows,
) -> dict[str, Mapping[str, np.ndarray]]:
    found: dict[str, Mapping[str, np.ndarray]] = {}
    for name, signature in meta_graph.signatures.items():
        if isinstance(host_signatures.get(name), HostPrediction):
            if says_missing(signature, rows.examples):
                _logger.info("Signature %r is not checked: rows hold empty values.", name)
                continue
            try:
                found[name] = request_inputs(signature, rows.examples, defaults=rows.defaults)
            except RequestError as error:
                _logger.warning("Signature %r is not checked: %s.", name, error)
        elif name in host_signatures:
            continue
        elif set(signature.inputs) == set(inputs):
            found[name] = inputs
        elif _names_all_classes(signature):
            # A prediction called `classes`, as canned estimators have it, is the likeliest one.
            continue
        elif len(signature.inputs) == len(inputs) == 1:
            # Classification and regression call their one input by a name of their own.
            found[name] = {next(iter(signature.inputs)): next(iter(inputs.values()))}
    return found


def _names_all_classes(signature: SignatureDescription) -> bool:
    return (
        signature.method_name == tf.saved_model.CLASSIFY_METHOD_NAME
        and tf.saved_model.CLASSIFY_OUTPUT_CLASSES in signature.outputs
    )


def _predictions(
    estimator: Estimator, features: Any, checkpoint_path: str | None
) -> dict[str, np.ndarray]:
    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        del params
        # One batch, as the server will see it: other batches would round otherwise.
        return tf.data.Dataset.from_tensors(tf.nest.map_structure(_as_tensor, features))

    predicted = next(
        estimator.predict(input_fn, checkpoint_path=checkpoint_path, yield_single_examples=False)
    )
    if not isinstance(predicted, Mapping):
        predicted = {_LONE_PREDICTION: predicted}
    return {key: np.asarray(value) for key, value in predicted.items()}


def _as_tensor(value: Any) -> Any:
    if isinstance(value, v1.SparseTensorValue):
        return tf.SparseTensor.from_value(value)
    if isinstance(value, v1.ragged.RaggedTensorValue):
        return tf.RaggedTensor.from_nested_row_splits(value.flat_values, value.nested_row_splits)
    return value
