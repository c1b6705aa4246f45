"""One metagraph of a SavedModel, built and not yet written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing import savers

v1 = tf.compat.v1


class ModelCall(Protocol):
    """Calls a model_fn and returns its spec: the exporter's only view of an estimator.

    The spec is an `EstimatorSpec` or a `TPUEstimatorSpec`: `predictions`, `export_outputs`, and
    `scaffold` or `scaffold_fn` are read.
    """

    def __call__(self, features: Any, labels: Any, mode: str, use_tpu: bool) -> Any:
        """Calls model_fn."""


@dataclasses.dataclass(frozen=True)
class MetaGraph:
    """A graph with all that a SavedModel says of it.

    Attributes:
        graph: The graph, of its own.
        mode: The mode that model_fn was called in.
        tags: Its tags, in the order in which they are written.
        signatures: Signature name -> `SignatureDef`.
        saver: Restores the variables here and wherever the SavedModel is loaded.
        init_op: Run after loading: tables, local variables.
    """

    graph: tf.Graph
    mode: str
    tags: tuple[str, ...]
    signatures: Mapping[str, Any]
    saver: v1.train.Saver
    init_op: tf.Operation

    @classmethod
    def of_default_graph(
        cls, *, mode: str, tags: tuple[str, ...], signatures: Mapping[str, Any], spec: Any
    ) -> MetaGraph:
        """Takes the default graph unchanged; no op is added to it later but by the writer."""
        graph = v1.get_default_graph()
        scaffold = _scaffold_of(spec)
        init_op = scaffold.local_init_op
        if init_op is None:
            init_op = v1.train.Scaffold.default_local_init_op()
        _check_in_graph(init_op, graph, "local_init_op")
        return cls(graph, mode, tags, signatures, _saver_of(scaffold, graph), init_op)

    def definition(self) -> v1.MetaGraphDef:
        """Returns its graph and its signatures as a SavedModel will hold them."""
        definition = v1.MetaGraphDef(graph_def=self.graph.as_graph_def(add_shapes=True))
        for name, signature in self.signatures.items():
            definition.signature_def[name].CopyFrom(signature)
        return definition


def receive(input_receiver_fn: Callable[[], Any]) -> Any:
    """Calls a receiver function and checks that its result has what the exporter reads."""
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
        saver.build()
    restore_op = saver.saver_def.restore_op_name
    try:
        graph.get_operation_by_name(restore_op)
    except KeyError:
        raise _foreign("saver", restore_op) from None
    return saver


def _check_in_graph(op: tf.Operation, graph: tf.Graph, what: str) -> None:
    if op.graph is not graph:
        raise _foreign(what, op.name)


def _foreign(what: str, name: str) -> ValueError:
    return ValueError(
        f"The scaffold's {what} ({name!r}) does not belong to the exported graph: model_fn created "
        "it inside the TPU computation. Return a TPUEstimatorSpec whose scaffold_fn creates the "
        "Scaffold: it is called outside."
    )
