"""Serves the `serve, tpu` metagraph of a SavedModel on this host, for its numbers.

What a TPU would run is a function. Here a copy of the SavedModel calls that function without the
TPU's own ops, so that a test sees that variables, assets and tables arrive, and that each
signature fetches the right one of the function's results.
"""

import copy
import os
import shutil
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

v1 = tf.compat.v1

TAGS = [tf.saved_model.SERVING, tf.saved_model.TPU]


def serve(
    path: str, feeds: Mapping[str, Any], signature: str = "serving_default"
) -> dict[str, Any]:
    """Feeds a signature of the TPU metagraph and gives what it fetches.

    Args:
        path: The SavedModel.
        feeds: Input name -> value.
        signature: Name of the signature.
    """
    host_path = f"{path}-on-host"
    shutil.copytree(path, host_path, dirs_exist_ok=True)
    _call_on_host(os.path.join(host_path, "saved_model.pb"))
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, TAGS, host_path)
        signature_def = meta_graph.signature_def[signature]
        return session.run(
            {key: info.name for key, info in signature_def.outputs.items()},
            {signature_def.inputs[key].name: value for key, value in feeds.items()},
        )


def _call_on_host(path: str) -> None:
    saved_model = saved_model_pb2.SavedModel()
    with open(path, "rb") as file:
        saved_model.ParseFromString(file.read())
    (meta_graph,) = [m for m in saved_model.meta_graphs if list(m.meta_info_def.tags) == TAGS]
    graph_def = meta_graph.graph_def
    _call_plainly(graph_def.node)
    for function in graph_def.library.function:
        _call_plainly(function.node_def)
        _without_tpu_ops(function)
        _without_dead_control(function)
    with open(path, "wb") as file:
        file.write(saved_model.SerializeToString())


def _call_plainly(nodes: Any) -> None:
    """Turns TPU calls into plain ones, at the top of the graph as in functions (of batches)."""
    kept = [node for node in nodes if node.op != "TPUOrdinalSelector"]
    for node in kept:
        if node.op == "TPUPartitionedCall":
            node.op = "StatefulPartitionedCall"
            del node.input[len(node.attr["Tin"].list.type)]  # the ordinal of the core
            node.attr.pop("autotuner_thresh", None)
    _replace(nodes, kept)


def _without_tpu_ops(function: Any) -> None:
    """Turns a rewritten function into a plain one: its metadata goes, its results pass through."""
    renamed = {}
    kept = []
    for node in function.node_def:
        node.device = ""
        for name in [name for name in node.attr if name.startswith(("_tpu", "_xla"))]:
            del node.attr[name]
        if node.op == "TPUReplicateMetadata":
            node.op = "NoOp"
            node.attr.clear()
        elif node.op == "TPUReplicatedOutput":
            node.op = "Identity"
            node.attr.pop("num_replicas")
            renamed[f"{node.name}:outputs:0"] = f"{node.name}:output:0"
        elif node.op == "TPUReplicatedInput":
            node.op = "Identity"
            for name in [name for name in node.attr if name != "T"]:
                del node.attr[name]
        elif node.op == "TPUCompilationResult":
            continue
        kept.append(node)
    _replace(function.node_def, kept)
    for node in function.node_def:
        _replace(node.input, [renamed.get(name, name) for name in node.input])
    for name, source in function.ret.items():
        function.ret[name] = renamed.get(source, source)


def _without_dead_control(function: Any) -> None:
    """Takes away control edges from nodes that are gone."""
    names = {node.name for node in function.node_def}
    for node in function.node_def:
        kept = [n for n in node.input if not n.startswith("^") or n[1:] in names]
        _replace(node.input, kept)
    for name, source in list(function.control_ret.items()):
        if source not in names:
            del function.control_ret[name]


def _replace(field: Any, values: list) -> None:
    """Sets a repeated field to some of its own values; they are copied before it is emptied."""
    values = [copy.deepcopy(value) for value in values]
    del field[:]
    field.extend(values)
