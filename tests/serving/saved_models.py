"""Small SavedModels: y = 2 x in each metagraph, whatever its tags; and functions that call each other."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import tensorflow as tf

# TensorFlow's protos are stable files of theirs; SavedModel's has no alias under `tf`.
from tensorflow.core.protobuf import saved_model_pb2

v1 = tf.compat.v1


def save_metagraphs(path: str, *tags: list[str], as_text: bool = False) -> str:
    """One metagraph for each list of tags; one with the tag `tpu` holds an op of the TPU."""
    builder = v1.saved_model.Builder(path)
    for index, tag_set in enumerate(tags):
        graph = tf.Graph()
        with graph.as_default(), v1.Session(graph=graph) as session:
            x = v1.placeholder(tf.float32, [None, 3], name="x")
            scale = v1.get_variable("scale", initializer=2.0, use_resource=True)
            y = tf.multiply(x, scale, name="y")
            if "tpu" in tag_set:
                _add_tpu_op(graph)
            signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
            options = {
                "signature_def_map": {"serving_default": signature},
                "main_op": v1.tables_initializer(),
            }
            initializer = v1.global_variables_initializer()
            if index == 0:
                session.run(initializer)
                builder.add_meta_graph_and_variables(session, tag_set, **options)
            else:
                builder.add_meta_graph(tag_set, **options)
    builder.save(as_text=as_text)
    return path


def _add_tpu_op(graph: tf.Graph) -> None:
    node = v1.NodeDef(name="ordinal", op="TPUOrdinalSelector")
    with graph.as_default():
        tf.graph_util.import_graph_def(v1.GraphDef(node=[node]), name="")


TWICE_EACH = {**{f"f{i}": [f"f{i + 1}"] * 2 for i in range(40)}, "f40": []}
"""41 functions, of which each but the last calls the next one twice: 2**41 - 1 calls in all."""

IN_A_ROW = {**{f"f{i}": [f"f{i + 1}"] for i in range(3000)}, "f3000": []}
"""More functions, each of which calls the next one, than Python's stack has room for."""

EACH_OTHER = {"f0": ["f1"], "f1": ["f0"]}
"""Two functions that call each other, which no TensorFlow runs."""


def library_of(calls: Mapping[str, Sequence[str]], op: str) -> v1.GraphDef:
    """A graph with a call of `f0`, and functions that each return the last of their calls, else 1.

    Args:
        calls: Which functions each of them calls, in this order.
        op: The type of all these calls.
    """
    graph_def = v1.GraphDef()
    for name, called in calls.items():
        function = graph_def.library.function.add()
        function.signature.name = name
        function.signature.output_arg.add(name="y", type=tf.float32.as_datatype_enum)
        for number, other in enumerate(called):
            _call(function.node_def.add(name=f"call{number}"), op, other)
        if not called:
            one = function.node_def.add(name="one", op="Const")
            one.attr["dtype"].type = tf.float32.as_datatype_enum
            one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
        output = "out_tensors" if called and op == "BatchFunction" else "output"
        function.ret["y"] = f"{function.node_def[-1].name}:{output}:0"
    _call(graph_def.node.add(name="call"), op, "f0")
    return graph_def


def _call(node: v1.NodeDef, op: str, function: str) -> None:
    node.op = op
    node.attr["f"].func.name = function
    for name in ("Tin", "Tout"):
        node.attr[name].list.SetInParent()
    node.attr["Tout"].list.type.append(tf.float32.as_datatype_enum)


def save_graph(folder: pathlib.Path, graph_def: v1.GraphDef, *tags: str, output: str) -> str:
    """Writes a SavedModel without variables, whose only signature returns a tensor."""
    saved_model = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    meta_graph = saved_model.meta_graphs.add(graph_def=graph_def)
    meta_graph.meta_info_def.tags[:] = tags
    info = meta_graph.signature_def["serving_default"].outputs["y"]
    info.name, info.dtype = output, tf.float32.as_datatype_enum
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    return str(folder)
