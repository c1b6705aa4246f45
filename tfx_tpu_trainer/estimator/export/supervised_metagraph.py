"""The metagraph of training or of evaluation, for CPU hosts; tagged `train` or `eval`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.engine import tracing
from tfx_tpu_trainer.estimator.export import signatures
from tfx_tpu_trainer.estimator.export.core_sums import without_core_sums
from tfx_tpu_trainer.estimator.export.meta_graph import MetaGraph, ModelCall, receive
from tfx_tpu_trainer.estimator.export.supervised_outputs import EvalOutput, TrainOutput
from tfx_tpu_trainer.estimator.mode_keys import ModeKeys

v1 = tf.compat.v1

_OUTPUTS = {ModeKeys.TRAIN: TrainOutput, ModeKeys.EVAL: EvalOutput}

# Where loaders look for the op that trains; TensorFlow gives the name no public constant.
_TRAIN_OP_COLLECTION = "saved_model_train_op"


def build_supervised_meta_graph(
    call_model: ModelCall,
    input_receiver_fn: Callable[[], Any],
    *,
    mode: str,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph in a graph of its own.

    Args:
        call_model: Calls model_fn.
        input_receiver_fn: Makes features and labels.
        mode: `"train"` or `"eval"`; it is the tag and the name of the one signature too.
        random_seed: Seed of the graph. Defaults to `None`, no seed.

    Returns:
        The metagraph. One of training has its train_op in a collection.

    Raises:
        ValueError: If the spec lacks what the mode needs, or something cannot be exported.
    """
    with tracing.fresh_graph(random_seed):
        receiver = receive(input_receiver_fn)
        labels = getattr(receiver, "labels", None)
        spec = call_model(receiver.features, labels, mode=mode, use_tpu=False)
        if hasattr(spec, "as_estimator_spec"):
            spec = spec.as_estimator_spec()
        output = _OUTPUTS[mode](
            loss=spec.loss, predictions=spec.predictions, metrics=spec.eval_metric_ops
        )
        if spec.train_op is not None:
            v1.add_to_collection(_TRAIN_OP_COLLECTION, spec.train_op)
        signature_defs = signatures.build_signature_defs(
            receiver.receiver_tensors,
            {mode: output},
            getattr(receiver, "receiver_tensors_alternatives", None),
            serving_only=False,
        )
        return without_core_sums(
            MetaGraph.of_default_graph(
                mode=mode, tags=(mode,), signatures=signature_defs, spec=spec
            )
        )
