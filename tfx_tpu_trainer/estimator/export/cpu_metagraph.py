"""The metagraph for CPU hosts, tagged `serve`: model_fn as it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfx_tpu_trainer.engine import tracing
from tfx_tpu_trainer.estimator.export import signatures
from tfx_tpu_trainer.estimator.export.core_sums import without_core_sums
from tfx_tpu_trainer.estimator.export.host_predictions import with_outputs
from tfx_tpu_trainer.estimator.export.meta_graph import MetaGraph, ModelCall, receive
from tfx_tpu_trainer.estimator.export.outputs import normalise_export_outputs
from tfx_tpu_trainer.estimator.export.tags import HOST_TAGS
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys


def build_cpu_meta_graph(
    call_model: ModelCall,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph in a graph of its own.

    Args:
        call_model: Calls model_fn.
        serving_input_receiver_fn: Makes the inputs.
        random_seed: Seed of the graph. Defaults to `None`, no seed.

    Returns:
        The metagraph, with a signature for each export output and for each host signature of the
        receiver.

    Raises:
        ValueError: If a host signature has the name of an export output or cannot be served.
    """
    with tracing.fresh_graph(random_seed):
        receiver = receive(serving_input_receiver_fn)
        spec = call_model(
            receiver.features,
            getattr(receiver, "labels", None),
            mode=ModeKeys.PREDICT,
            use_tpu=False,
        )
        of_outputs = signatures.build_signature_defs(
            receiver.receiver_tensors,
            normalise_export_outputs(spec.export_outputs, spec.predictions),
            getattr(receiver, "receiver_tensors_alternatives", None),
        )
        of_host = signatures.build_host_signature_defs(
            with_outputs(getattr(receiver, "host_signatures", None), of_outputs)
        )
        clash = sorted(set(of_outputs) & set(of_host))
        if clash:
            raise ValueError(
                f"The receiver's host signatures {clash} have the names of export outputs. Rename "
                "one of each pair."
            )
        return without_core_sums(
            MetaGraph.of_default_graph(
                mode=ModeKeys.PREDICT,
                tags=HOST_TAGS,
                signatures={**of_outputs, **of_host},
                spec=spec,
            )
        )
