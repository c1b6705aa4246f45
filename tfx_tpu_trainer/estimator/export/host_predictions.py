"""Further ways to a model's predictions: its nodes once more, behind other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator.export.outputs import DEFAULT_SIGNATURE
from tfx_tpu_trainer.estimator.export.receivers import HostPrediction, HostSignature

v1 = tf.compat.v1


def with_outputs(
    host_signatures: Mapping[str, HostSignature | HostPrediction] | None,
    signature_defs: Mapping[str, Any],
) -> dict[str, HostSignature]:
    """Computes the default signature's outputs behind the inputs of each `HostPrediction`.

    The nodes between the replaced tensors and the outputs are copied in the default graph, so
    that the default signature itself stays as it is, and as fast.

    Args:
        host_signatures: Those of the receiver; `None` for none.
        signature_defs: Those of the model's export outputs.

    Returns:
        Signature name -> inputs and outputs. Predictions are left out of a model without a
        default signature: there is nothing to answer with.
    """
    outputs = _default_outputs(signature_defs)
    built = {}
    for name, signature in (host_signatures or {}).items():
        if isinstance(signature, HostSignature):
            built[name] = signature
        elif outputs:
            built[name] = HostSignature(signature.inputs, _copied(outputs, signature, name))
    return built


def _default_outputs(signature_defs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    if DEFAULT_SIGNATURE not in signature_defs:
        return {}
    graph = v1.get_default_graph()
    return {
        key: v1.saved_model.utils.get_tensor_from_tensor_info(info, graph)
        for key, info in signature_defs[DEFAULT_SIGNATURE].outputs.items()
    }


def _copied(
    outputs: Mapping[str, tf.Tensor], signature: HostPrediction, name: str
) -> dict[str, tf.Tensor]:
    copier = GraphCopier(v1.get_default_graph())
    copies = copier.copy(
        [Fetch(0, tensor) for tensor in outputs.values()],
        replaced=[signature.replaced],
        name=name,
        alone=True,
    )
    for copy, original in zip(copies, outputs.values(), strict=True):
        # Shape inference starts anew and may know less, for instance behind a py_function.
        copy.set_shape(original.shape)
    return dict(zip(outputs, copies, strict=True))
