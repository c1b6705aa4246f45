"""A metagraph of a SavedModel before it is written: its tags, its saver, its signatures.

This module builds those for CPU hosts, for serving, training and evaluation: model_fn unchanged, without sums over
cores.

Each export output becomes one signature for each set of receiver tensors that a request may feed. A loader or a server
selects a metagraph by its tags:

| metagraph | tags |
|---|---|
| serving, on a CPU host | `serve` |
| serving, with the model on a TPU | `serve`, `tpu` |
| training | `train` |
| evaluation | `eval` |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import tracing
from tfx_tpu_trainer.estimator._engine.checkpointing import savers
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.graph_nodes import tensor_names, upstream
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.export._outputs import (
    DEFAULT_SIGNATURE,
    EvalOutput,
    ExportOutput,
    TrainOutput,
    normalise_export_outputs,
)
from tfx_tpu_trainer.estimator.export._receivers import (
    HostPrediction,
    HostSignature,
    HostSignatures,
    by_name,
    host_signatures_of,
)
from tfx_tpu_trainer.estimator.places.one_core import put_on_one_core, reads_other_cores

v1 = tf.compat.v1

_logger = tf.get_logger()

HOST_TAGS: Final = (tf.saved_model.SERVING,)
"""Tags of the metagraph for hosts without a TPU."""
TPU_TAGS: Final = (tf.saved_model.SERVING, tf.saved_model.TPU)
"""Tags of the metagraph for TPU hosts."""

# In the order of the original's log.
_METHODS = {
    v1.saved_model.CLASSIFY_METHOD_NAME: "Classify",
    v1.saved_model.REGRESS_METHOD_NAME: "Regress",
    v1.saved_model.PREDICT_METHOD_NAME: "Predict",
    "tensorflow/supervised/training": "Train",
    "tensorflow/supervised/eval": "Eval",
}


class ModelCall(Protocol):
    """Calls a model_fn and returns its spec: the exporter's only view of an estimator."""

    # The spec is an `EstimatorSpec` or a `TPUEstimatorSpec`: `predictions`, `export_outputs`, and `scaffold` or
    # `scaffold_fn` are read.

    def __call__(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn."""


@dataclasses.dataclass(frozen=True)
class MetaGraph:
    """A graph with everything that a SavedModel stores about it."""

    graph: tf.Graph
    mode: str
    tags: tuple[str, ...]  # In the order in which they are written.
    signatures: Mapping[str, Any]  # Name -> `SignatureDef`.
    saver: v1.train.Saver  # Restores the variables here and wherever the SavedModel is loaded.
    init_op: tf.Operation  # Run after loading: tables, local variables.

    @classmethod
    def of_default_graph(
        cls, *, mode: str, tags: tuple[str, ...], signatures: Mapping[str, Any], spec: Any
    ) -> MetaGraph:
        """Takes the default graph unchanged; only the writer adds ops to it."""
        graph = v1.get_default_graph()
        scaffold = _scaffold_of(spec)
        init_op = scaffold.local_init_op
        if init_op is None:
            init_op = v1.train.Scaffold.default_local_init_op()
        if init_op.graph is not graph:
            raise _foreign("local_init_op", init_op.name)
        return cls(graph, mode, tags, signatures, _saver_of(scaffold, graph), init_op)

    def definition(self) -> v1.MetaGraphDef:
        """Returns the graph and signatures as a SavedModel holds them."""
        definition = v1.MetaGraphDef(graph_def=self.graph.as_graph_def(add_shapes=True))
        for name, signature in self.signatures.items():
            definition.signature_def[name].CopyFrom(signature)
        return definition


def receive(input_receiver_fn: Callable[[], Any]) -> Any:
    """Calls a receiver function and checks its result."""
    receiver = input_receiver_fn()
    for name in ("features", "receiver_tensors"):
        if getattr(receiver, name, None) is None:
            raise ValueError(
                f"{name} must be defined: the input receiver function returned {receiver!r}. "
                "Return a ServingInputReceiver, or a SupervisedInputReceiver for training and "
                "evaluation."
            )
    return receiver


def _scaffold_of(spec: Any) -> v1.train.Scaffold:
    scaffold_fn = getattr(spec, "scaffold_fn", None)
    scaffold = scaffold_fn() if scaffold_fn else getattr(spec, "scaffold", None)
    return scaffold or v1.train.Scaffold()


def _saver_of(scaffold: v1.train.Scaffold, graph: tf.Graph) -> v1.train.Saver:
    saver = scaffold.saver
    if saver is None:
        return v1.train.Saver(sharded=True, allow_empty=True)
    if isinstance(saver, savers.CHECKPOINTS):
        return savers.saver_of_objects(saver)
    if not isinstance(saver, v1.train.Saver):
        raise TypeError(
            "The scaffold's saver must be a tf.compat.v1.train.Saver or a tf.train.Checkpoint, "
            f"given: {saver!r}."
        )
    if saver.saver_def is None:
        # A Saver with defer_build finds its variables when it is built, in this graph.
        saver.build()
    restore_op = saver.saver_def.restore_op_name
    try:
        graph.get_operation_by_name(restore_op)
    except KeyError:
        raise _foreign("saver", restore_op) from None
    return saver


def _foreign(what: str, name: str) -> ValueError:
    return ValueError(
        f"The scaffold's {what} ({name!r}) does not belong to the exported graph: model_fn created "
        "it inside the TPU computation. Return a TPUEstimatorSpec whose scaffold_fn creates the "
        "Scaffold: it is called outside."
    )


def build_signature_defs(
    receiver_tensors: Any,
    export_outputs: Mapping[str, ExportOutput],
    receiver_tensors_alternatives: Mapping[str, Any] | None = None,
    *,
    serving_only: bool = True,
) -> dict[str, Any]:
    """Returns the signatures that TensorFlow Serving can serve."""
    # Others are left out with a log line that gives the reason: a classification that is not fed by one string tensor,
    # an output that needs a placeholder which the signature does not feed.
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
    yield "", by_name(receiver_tensors)
    for name, tensors in (alternatives or {}).items():
        yield f"{name or 'None'}:", by_name(tensors)


def _signature(
    receiver_tensors: Mapping[str, Any], output: ExportOutput, *, serving_only: bool
) -> Any:
    signature, graph = output.as_signature_def(receiver_tensors), v1.get_default_graph()
    names = [name for info in signature.outputs.values() for name in tensor_names(info)]
    _check_fed(receiver_tensors.values(), map(graph.get_tensor_by_name, names))
    if serving_only and not v1.saved_model.is_valid_signature(signature):
        raise ValueError(f"TensorFlow Serving rejects this signature: {signature}")
    return signature


def _check_fed(inputs: Iterable[Any], outputs: Iterable[Any]) -> None:
    """Checks that outputs need no placeholder except the inputs; both may be sparse or ragged."""
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


# Loaders look for the train op here; TensorFlow has no public constant for it.
_TRAIN_OP_COLLECTION = "saved_model_train_op"
_SUPERVISED_OUTPUTS = {ModeKeys.TRAIN: TrainOutput, ModeKeys.EVAL: EvalOutput}


def build_cpu_meta_graph(
    call_model: ModelCall,
    serving_input_receiver_fn: Callable[[], Any],
    *,
    random_seed: int | None = None,
) -> MetaGraph:
    """Builds the metagraph tagged `serve` in its own graph."""
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
        of_host = build_host_signature_defs(with_outputs(host_signatures_of(receiver), of_outputs))
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
    """Builds the metagraph tagged `train` or `eval`, with loss, metrics and predictions, in its own graph."""
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
    host_signatures: HostSignatures, signature_defs: Mapping[str, Any]
) -> dict[str, HostSignature]:
    """Computes the default signature's outputs behind the inputs of each `HostPrediction`."""
    # The nodes between the replaced tensors and the outputs are copied in the default graph, so the default signature
    # is unchanged and as fast as before.
    default, graph = signature_defs.get(DEFAULT_SIGNATURE), v1.get_default_graph()
    outputs = {}
    if default is not None:
        outputs = {
            key: graph.get_tensor_by_name(info.name) for key, info in default.outputs.items()
        }
    built = {}
    for name, signature in host_signatures.items():
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
        # Shape inference starts over and may find less, for example after a py_function.
        copy.set_shape(original.shape)
    return dict(zip(outputs, copies, strict=True))


def without_core_sums(meta_graph: MetaGraph) -> MetaGraph:
    """Returns a metagraph in which each sum over cores is replaced by its addend, its value on one core."""
    # TensorFlow has no CPU kernel for `CrossReplicaSum`, so a graph with one (a training with a `CrossShardOptimizer`,
    # or batch norm over cores) can't even be loaded. A core's number becomes 0, since TensorFlow's kernel of
    # `XlaReplicaId` would end the process.
    if not reads_other_cores(meta_graph.graph.as_graph_def()):
        return meta_graph
    # Through a MetaGraphDef, since ops in a graph can't be replaced. It includes the collections: variables, tables,
    # assets and the train op are found in the new graph by name.
    with meta_graph.graph.as_default():
        definition = v1.train.export_meta_graph(saver_def=meta_graph.saver.as_saver_def())
    put_on_one_core(definition.graph_def)
    with tf.Graph().as_default() as graph:
        saver = v1.train.import_meta_graph(definition)
    init_op = graph.get_operation_by_name(meta_graph.init_op.name)
    return dataclasses.replace(meta_graph, graph=graph, saver=saver, init_op=init_op)
