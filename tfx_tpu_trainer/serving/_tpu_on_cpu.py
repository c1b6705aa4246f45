"""Turns the metagraph for TPU hosts into one that a CPU runs, as one core would."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# TensorFlow's protos are stable; this one has no alias under `tf`.
from tensorflow.core.protobuf import meta_graph_pb2

from tfx_tpu_trainer.estimator.extending import tensor_names
from tfx_tpu_trainer.serving._saved_model_file import VARIABLES

v1 = tf.compat.v1

Answer = Callable[[str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]
"""Answers a request to a signature."""

_INIT_OP = "__saved_model_init_op"

# Op -> the attribute with its number of copies, if it has one. On one core, these ops pass on their first input; an
# export runs each request on one core.
_PASSES_ON = {
    "CrossReplicaSum": None,
    "TPUPartitionedInput": "N",
    "TPUReplicatedInput": "N",
    "TPUReplicatedOutput": "num_replicas",
    "XlaAllReduce": None,
    "XlaSharding": None,
}

# Op -> the constant that replaces it: the number of the core, and the compiler's (empty) error.
_CONSTANTS = {"TPUCompilationResult": b"", "TPUOrdinalSelector": np.zeros(1, np.int32)}

# Op -> the name of its result inside a function; that of Identity and Const is `output`.
_RENAMED = {"TPUOrdinalSelector": "device_ordinals", "TPUReplicatedOutput": "outputs"}


def on_cpu(meta_graph: v1.MetaGraphDef) -> v1.MetaGraphDef:
    """Returns a copy of a metagraph that runs on a CPU, as far as its TPU-only ops are known.

    Marks for the TPU's compiler and devices are dropped, so that `outside_compilation` has no effect. Batches are made
    and padded as before, but none waits for further requests. An unknown op stays unchanged; TensorFlow names it when
    it has to run.
    """
    copy = v1.MetaGraphDef()
    copy.CopyFrom(meta_graph)
    for node in copy.graph_def.node:
        _translate(node)
    for function in copy.graph_def.library.function:
        renamed = {}
        for node in function.node_def:
            if node.op in _RENAMED:
                renamed[f"{node.name}:{_RENAMED[node.op]}:0"] = f"{node.name}:output:0"
            _translate(node)
        for node in function.node_def:
            for place, source in enumerate(node.input):
                node.input[place] = renamed.get(source, source)
        for name, source in function.ret.items():
            function.ret[name] = renamed.get(source, source)
    return copy


def _translate(node: v1.NodeDef) -> None:
    node.device = ""
    for name in [name for name in node.attr if name.startswith(("_tpu", "_xla"))]:
        del node.attr[name]
    if node.op == "TPUPartitionedCall":
        node.op = "StatefulPartitionedCall"
        del node.input[len(node.attr["Tin"].list.type)]  # the core's number
        node.attr.pop("autotuner_thresh", None)
    elif node.op == "BatchFunction":
        node.attr["batch_timeout_micros"].i = 0
    elif node.op == "TPUReplicateMetadata":
        node.op = "NoOp"
        node.attr.clear()
    elif node.op in _CONSTANTS:
        value = tf.make_tensor_proto(_CONSTANTS[node.op])
        node.op = "Const"
        node.attr["dtype"].type = value.dtype
        node.attr["value"].tensor.CopyFrom(value)
    elif node.op in _PASSES_ON:
        count = _PASSES_ON[node.op]
        if count is None or node.attr[count].i == 1:
            node.op = "Identity"
            kept = [name for at, name in enumerate(node.input) if at == 0 or name.startswith("^")]
            node.input[:] = kept
            for name in [name for name in node.attr if name != "T"]:
                del node.attr[name]


@contextlib.contextmanager
def served(path: str, meta_graph: v1.MetaGraphDef) -> Iterator[Answer]:
    """Yields a function that answers requests by a metagraph in memory, with a SavedModel's variables and assets."""
    config = v1.ConfigProto()
    # Ops that no signature needs may have no kernel here.
    config.graph_options.place_pruned_graph = True
    # The optimizer would rewrite each graph differently, and so round differently.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with contextlib.closing(v1.Session(graph=tf.Graph(), config=config)) as session:
        with session.graph.as_default():
            saver = v1.train.import_meta_graph(meta_graph)
            prefix = os.path.join(path, VARIABLES)
            if saver is not None and tf.io.gfile.exists(f"{prefix}.index"):
                saver.restore(session, prefix)
            session.run(_init_ops(meta_graph), _assets(path, meta_graph))

        def answer(name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            signature = meta_graph.signature_def[name]
            outputs = {
                key if info.name else f"{key} ({number})": tensor
                for key, info in signature.outputs.items()
                for number, tensor in enumerate(tensor_names(info))
            }
            return session.run(
                outputs, {signature.inputs[key].name: value for key, value in inputs.items()}
            )

        yield answer


def _init_ops(meta_graph: v1.MetaGraphDef) -> list[Any]:
    """Returns the op that fills an imported metagraph's tables."""
    if _INIT_OP in meta_graph.signature_def:
        info = meta_graph.signature_def[_INIT_OP].outputs[_INIT_OP]
        return [v1.get_default_graph().as_graph_element(info.name)]
    for key in (v1.saved_model.MAIN_OP_KEY, v1.saved_model.LEGACY_INIT_OP_KEY):
        if found := v1.get_collection(key):
            return list(found)
    return []


def _assets(path: str, meta_graph: v1.MetaGraphDef) -> dict[str, str]:
    """Returns file name tensors, each with its file in the SavedModel's folder."""
    files = list(meta_graph.asset_file_def)
    key = tf.saved_model.ASSETS_KEY
    if not files and key in meta_graph.collection_def:
        for packed in meta_graph.collection_def[key].any_list.value:
            files.append(meta_graph_pb2.AssetFileDef())
            packed.Unpack(files[-1])
    return {
        file.tensor_info.name: os.path.join(path, tf.saved_model.ASSETS_DIRECTORY, file.filename)
        for file in files
    }
