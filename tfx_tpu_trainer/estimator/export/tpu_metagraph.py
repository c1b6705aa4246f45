"""The metagraph for TPU hosts, tagged `serve` and `tpu`: model_fn behind a TPU call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tf_private_tpu, tracing
from tfx_tpu_trainer.estimator.export import signatures
from tfx_tpu_trainer.estimator.export.host_only_ops import check_runs_on_tpu, runs_on_tpu
from tfx_tpu_trainer.estimator.export.meta_graph import MetaGraph, ModelCall, receive
from tfx_tpu_trainer.estimator.export.outputs import ExportOutput, normalise_export_outputs
from tfx_tpu_trainer.estimator.export.rewritten_model import rewrite_model
from tfx_tpu_trainer.estimator.export.tags import TPU_TAGS
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys

v1 = tf.compat.v1
_logger = tf.get_logger()


def build_tpu_meta_graph(
    call_model: ModelCall,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    api_version: int,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph in a graph of its own. No TPU is needed.

    Args:
        call_model: Calls model_fn.
        serving_input_receiver_fn: Makes the inputs; its graph stays on the host.
        api_version: 1: all of model_fn is rewritten for the TPU here, and finds
            `params['use_tpu']` False. 2: model_fn finds it True and puts on the TPU what it wants.
        random_seed: Seed of the graph. Defaults to `None`, no seed.

    Returns:
        The metagraph, with a signature for each export output.

    Raises:
        ValueError: If there is nothing to run on the TPU, there are ops on it that none can run,
            or an export output is of a kind that cannot be served from one.
    """
    build_outputs = {1: _rewrite_model, 2: _call_model_that_rewrites}[api_version]
    with tracing.fresh_graph(random_seed):
        receiver = receive(serving_input_receiver_fn)
        with tf_private_tpu.inference_context():
            spec, export_outputs = build_outputs(call_model, receiver)
        signature_defs = signatures.build_signature_defs(
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
            "export_saved_model_api_version=2 it is model_fn that calls inference_on_tpu where "
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
