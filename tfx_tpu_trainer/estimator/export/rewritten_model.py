"""A whole model_fn as one TPU program, and its outputs as the host sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator.export.batching import BatchConfig, call_in_batches
from tfx_tpu_trainer.estimator.export.outputs import (
    ExportOutput,
    normalise_export_outputs,
    own_output,
)
from tfx_tpu_trainer.estimator.export.tpu_call import call_on_tpu

v1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class RewrittenModel:
    """A model that runs on the TPU.

    Attributes:
        spec: What model_fn returned; its tensors are those inside of the TPU computation.
        export_outputs: Signature name -> output, of tensors of the default graph.
        predictions: Predictions of the default graph, `None` where they were not asked for.
    """

    spec: Any
    export_outputs: Mapping[str, ExportOutput]
    predictions: Any


def rewrite_model(
    call_model: Callable[[Any], Any],
    features: Any,
    *,
    batch_config: BatchConfig | None = None,
    predictions_come_out: bool = False,
) -> RewrittenModel:
    """Calls a model inside of a TPU computation, which the default graph calls.

    A feature that the model passes through untouched never goes in: strings may pass, which a TPU
    cannot hold.

    Args:
        call_model: Takes features and gives the spec of a prediction.
        features: A structure of tensors.
        batch_config: How the rows of several requests are put together. Defaults to `None`, not.
        predictions_come_out: Whether the predictions are asked for beside the export outputs.
            Defaults to `False`.

    Returns:
        The model.

    Raises:
        NotImplementedError: If the default graph is itself being rewritten.
        ValueError: If nothing is left for the TPU to compute, or an export output is of a kind
            that cannot be served from one.
    """
    host_graph = v1.get_default_graph()
    stays_outside: dict[Any, tf.Tensor] = {}
    leaving: dict[Any, tf.Tensor] = {}
    spec: Any = None
    made_inside: dict[str, ExportOutput] = {}

    def note(tensor: tf.Tensor) -> tf.Tensor:
        if tensor.graph is host_graph:
            stays_outside[tensor.ref()] = tensor
        elif tensor.ref() not in stays_outside:
            leaving[tensor.ref()] = tensor
        return tensor

    def computation(inner_features: Any) -> list[tf.Tensor]:
        nonlocal spec
        spec = call_model(inner_features)
        given = normalise_export_outputs(spec.export_outputs, spec.predictions)
        made_inside.update({name: own_output(output) for name, output in given.items()})
        for output in made_inside.values():
            output.map_tensors(note)
        if predictions_come_out:
            tf.nest.map_structure(note, spec.predictions)
        if not leaving:
            raise ValueError(
                "Nothing is left for the TPU to compute: every export output is a feature passed "
                f"through untouched: {sorted(made_inside)}. Export with export_to_tpu=False."
            )
        return list(leaving.values())

    def call_on_batch(*tensors: tf.Tensor) -> list[tf.Tensor]:
        for inner, outer in zip(tensors, tf.nest.flatten(features), strict=True):
            stays_outside[inner.ref()] = outer
        inner_features = tf.nest.pack_sequence_as(features, tensors)
        return call_on_tpu(lambda: computation(inner_features))

    if batch_config is None:
        results = call_on_tpu(lambda: computation(features))
    else:
        results = call_in_batches(call_on_batch, tf.nest.flatten(features), batch_config)
    come_out = {**stays_outside, **dict(zip(leaving, results, strict=True))}

    def outside(tensor: tf.Tensor) -> tf.Tensor:
        return come_out[tensor.ref()]

    return RewrittenModel(
        spec=spec,
        export_outputs={name: output.map_tensors(outside) for name, output in made_inside.items()},
        predictions=(
            tf.nest.map_structure(outside, spec.predictions) if predictions_come_out else None
        ),
    )
