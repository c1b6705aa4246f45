"""Signatures of a metagraph: every export output, fed by every set of receiver tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.graph_nodes import tensor_names, upstream
from tfx_tpu_trainer.estimator.export._outputs import DEFAULT_SIGNATURE, ExportOutput
from tfx_tpu_trainer.estimator.export._receivers import SINGLE_RECEIVER_NAME, HostSignature

v1 = tf.compat.v1

_logger = tf.get_logger()

# The kinds in the order of the original's log.
_METHODS = {
    v1.saved_model.CLASSIFY_METHOD_NAME: "Classify",
    v1.saved_model.REGRESS_METHOD_NAME: "Regress",
    v1.saved_model.PREDICT_METHOD_NAME: "Predict",
    "tensorflow/supervised/training": "Train",
    "tensorflow/supervised/eval": "Eval",
}


def build_signature_defs(
    receiver_tensors: Any,
    export_outputs: Mapping[str, ExportOutput],
    receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    *,
    serving_only: bool = True,
) -> dict[str, Any]:
    """Returns the signatures that TensorFlow Serving can serve.

    One that it cannot is left out, and the log says why: a classification that is not fed by one
    string tensor, an output that needs a placeholder which the signature does not feed.
    """
    included: dict[str, Any] = {}
    excluded: dict[str, str] = {}
    for prefix, tensors in _ways_in(receiver_tensors, receiver_tensors_alternatives):
        for key, output in export_outputs.items():
            name = f"{prefix}{key or 'None'}"
            try:
                included[name] = _signature(tensors, output, serving_only=serving_only)
            except ValueError as reason:
                excluded[name] = str(reason)
    _log_report(included, excluded, default_expected=serving_only)
    return included


def build_host_signature_defs(signatures: Mapping[str, HostSignature] | None) -> dict[str, Any]:
    """Returns the predict signatures that a receiver adds to the `serve` metagraph."""
    built = {}
    for name, signature in (signatures or {}).items():
        if not signature.inputs or not signature.outputs:
            raise ValueError(
                f"The host signature {name!r} needs inputs and outputs, given: {signature}."
            )
        try:
            _check_fed(signature.inputs.values(), signature.outputs.values())
        except ValueError as error:
            raise ValueError(f"The host signature {name!r} cannot be served: {error}") from error
        built[name] = v1.saved_model.predict_signature_def(
            dict(signature.inputs), dict(signature.outputs)
        )
    return built


def _ways_in(
    receiver_tensors: Any, alternatives: Mapping[str, Any] | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", _as_dict(receiver_tensors)
    for name, tensors in (alternatives or {}).items():
        yield f"{name or 'None'}:", _as_dict(tensors)


def _as_dict(tensors: Any) -> Mapping[str, Any]:
    return tensors if isinstance(tensors, Mapping) else {SINGLE_RECEIVER_NAME: tensors}


def _signature(
    receiver_tensors: Mapping[str, Any], output: ExportOutput, *, serving_only: bool
) -> Any:
    signature = output.as_signature_def(receiver_tensors)
    _check_fed(receiver_tensors.values(), _fetched(signature))
    if serving_only and not v1.saved_model.is_valid_signature(signature):
        raise ValueError(f"TensorFlow Serving does not take such a signature: {signature}")
    return signature


def _fetched(signature: Any) -> Iterator[tf.Tensor]:
    graph = v1.get_default_graph()
    for info in signature.outputs.values():
        yield from map(graph.get_tensor_by_name, tensor_names(info))


def _check_fed(inputs: Iterable[Any], outputs: Iterable[Any]) -> None:
    """Checks that the outputs need no placeholder but the inputs; both may be sparse or ragged."""
    fed = {tensor.name for tensor in tf.nest.flatten(list(inputs), expand_composites=True)}
    for op in upstream(tf.nest.flatten(list(outputs), expand_composites=True), given=fed):
        if op.type == "Placeholder":
            raise ValueError(
                f"The signature's input tensors {sorted(fed)} are insufficient to compute its "
                f"outputs, because of the dependency on `{op.name}` which is not given as "
                "a signature input."
            )


def _log_report(
    included: Mapping[str, Any], excluded: Mapping[str, str], *, default_expected: bool
) -> None:
    for method, kind in _METHODS.items():
        names = [name for name, built in included.items() if built.method_name == method]
        _logger.info("Signatures INCLUDED in export for %s: %s", kind, names or None)
    if excluded:
        _logger.info(
            "Signatures EXCLUDED from export because they cannot be be served via TensorFlow "
            "Serving APIs:"
        )
        for name, reason in excluded.items():
            _logger.info("%r : %s", name, reason)
    if not included:
        _logger.warning("Export includes no signatures! Why: %s", dict(excluded))
    elif default_expected and DEFAULT_SIGNATURE not in included:
        _logger.warning("Export includes no default signature! Why: %s", dict(excluded))
