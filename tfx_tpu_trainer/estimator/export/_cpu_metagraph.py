"""The metagraphs for CPU hosts, of serving, training and evaluation: model_fn unchanged, without sums over cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tracing
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._mode_keys import ModeKeys
from tfx_tpu_trainer.estimator.export._meta_graph import (
    HOST_TAGS,
    MetaGraph,
    ModelCall,
    build_host_signature_defs,
    build_signature_defs,
    receive,
)
from tfx_tpu_trainer.estimator.export._outputs import (
    DEFAULT_SIGNATURE,
    EvalOutput,
    TrainOutput,
    normalise_export_outputs,
)
from tfx_tpu_trainer.estimator.export._receivers import HostPrediction, HostSignature
from tfx_tpu_trainer.estimator.places.one_core import put_on_one_core, reads_other_cores

v1 = tf.compat.v1

# Where loaders look for the op that trains; TensorFlow gives the name no public constant.
_TRAIN_OP_COLLECTION = "saved_model_train_op"
_SUPERVISED_OUTPUTS = {ModeKeys.TRAIN: TrainOutput, ModeKeys.EVAL: EvalOutput}


def build_cpu_meta_graph(
    call_model: ModelCall,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph tagged `serve` in a separate graph."""
    with tracing.fresh_graph(random_seed):
        receiver = receive(serving_input_receiver_fn)
        spec = call_model(
            receiver.features,
            getattr(receiver, "labels", None),
            mode=ModeKeys.PREDICT,
            use_tpu=False,
        )
        of_outputs = build_signature_defs(
            receiver.receiver_tensors,
            normalise_export_outputs(spec.export_outputs, spec.predictions),
            getattr(receiver, "receiver_tensors_alternatives", None),
        )
        of_host = build_host_signature_defs(
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


def build_supervised_meta_graph(
    call_model: ModelCall,
    input_receiver_fn: Callable[[], Any],
    *,
    mode: str,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph tagged `train` or `eval`, of loss, metrics and predictions, in a separate graph."""
    with tracing.fresh_graph(random_seed):
        receiver = receive(input_receiver_fn)
        labels = getattr(receiver, "labels", None)
        spec = call_model(receiver.features, labels, mode=mode, use_tpu=False)
        if hasattr(spec, "as_estimator_spec"):
            spec = spec.as_estimator_spec()
        output = _SUPERVISED_OUTPUTS[mode](
            loss=spec.loss, predictions=spec.predictions, metrics=spec.eval_metric_ops
        )
        if spec.train_op is not None:
            v1.add_to_collection(_TRAIN_OP_COLLECTION, spec.train_op)
        signature_defs = build_signature_defs(
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


def with_outputs(
    host_signatures: Mapping[str, HostSignature | HostPrediction] | None,
    signature_defs: Mapping[str, Any],
) -> dict[str, HostSignature]:
    """Computes the default signature's outputs behind the inputs of each `HostPrediction`.

    The nodes between the replaced tensors and the outputs are copied in the default graph, so
    that the default signature itself stays as it is, and as fast.
    """
    default, graph = signature_defs.get(DEFAULT_SIGNATURE), v1.get_default_graph()
    outputs = {}
    if default is not None:
        outputs = {
            key: graph.get_tensor_by_name(info.name) for key, info in default.outputs.items()
        }
    built = {}
    for name, signature in (host_signatures or {}).items():
        if isinstance(signature, HostSignature):
            built[name] = signature
        elif outputs:
            built[name] = HostSignature(signature.inputs, _copied(outputs, signature, name))
    return built


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


def without_core_sums(meta_graph: MetaGraph) -> MetaGraph:
    """Returns a metagraph in which a sum over cores is what it is on one core: its addend.

    TensorFlow has no CPU kernel for `CrossReplicaSum`, so that a graph with one cannot even be
    loaded: one of training with a `CrossShardOptimizer`, or one with batch norm over cores. A
    core's number is 0: TensorFlow's kernel of `XlaReplicaId` would end the process that runs it.
    """
    if not reads_other_cores(meta_graph.graph.as_graph_def()):
        return meta_graph
    with meta_graph.graph.as_default():
        definition = v1.train.export_meta_graph(saver_def=meta_graph.saver.as_saver_def())
    put_on_one_core(definition.graph_def)
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(definition)
    init_op = graph.get_operation_by_name(meta_graph.init_op.name)
    return dataclasses.replace(meta_graph, graph=graph, saver=saver, init_op=init_op)
