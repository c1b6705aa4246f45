"""The metagraph for TPU hosts, tagged `serve` and `tpu`: model_fn behind a TPU call, or rewritten as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tf_private, tracing
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.export import _signatures
from tfx_tpu_trainer.estimator.export._batching import BatchConfig, call_in_batches
from tfx_tpu_trainer.estimator.export._meta_graph import MetaGraph, ModelCall, receive
from tfx_tpu_trainer.estimator.export._outputs import (
    ExportOutput,
    normalise_export_outputs,
    own_output,
)
from tfx_tpu_trainer.estimator.export._tags import TPU_TAGS
from tfx_tpu_trainer.estimator.export._tpu_call import call_on_tpu, check_runs_on_tpu, runs_on_tpu

v1 = tf.compat.v1
_logger = tf.get_logger()


def build_tpu_meta_graph(
    call_model: ModelCall,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    api_version: int,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph in a separate graph. No TPU is needed."""
    build_outputs = {1: _rewrite_model, 2: _call_model_that_rewrites}[api_version]
    with tracing.fresh_graph(random_seed):
        receiver = receive(serving_input_receiver_fn)
        with tf_private.inference_context():
            spec, export_outputs = build_outputs(call_model, receiver)
        signature_defs = _signatures.build_signature_defs(
            receiver.receiver_tensors,
            export_outputs,
            getattr(receiver, "receiver_tensors_alternatives", None),
        )
        return MetaGraph.of_default_graph(
            mode=ModeKeys.PREDICT, tags=TPU_TAGS, signatures=signature_defs, spec=spec
        )


def _call_model_that_rewrites(
    call_model: ModelCall, receiver: Any
) -> tuple[Any, Mapping[str, ExportOutput]]:
    spec = _call(call_model, receiver.features, receiver, use_tpu=True)
    # A model_fn may rewrite without the calls of this package, which check for themselves.
    check_runs_on_tpu(v1.get_default_graph())
    if not runs_on_tpu(v1.get_default_graph()):
        _logger.warning(
            "The exported graph for TPU hosts runs nothing on a TPU: with "
            "export_saved_model_api_version=2, model_fn must call inference_on_tpu if "
            "params['use_tpu'] is True. Version 1 puts all of model_fn on the TPU."
        )
    return spec, normalise_export_outputs(spec.export_outputs, spec.predictions)


def _rewrite_model(call_model: ModelCall, receiver: Any) -> tuple[Any, Mapping[str, ExportOutput]]:
    model = rewrite_model(
        lambda features: _call(call_model, features, receiver, use_tpu=False), receiver.features
    )
    return model.spec, model.export_outputs


def _call(call_model: ModelCall, features: Any, receiver: Any, *, use_tpu: bool) -> Any:
    labels = getattr(receiver, "labels", None)
    return call_model(features, labels, mode=ModeKeys.PREDICT, use_tpu=use_tpu)


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
