"""Models that our TPUEstimator exports, copies of them that are broken on purpose, and small SavedModels made by hand.

The exported model computes `y = x W + b` of `x` [batch, 3] and, outside of the compilation, the text of the
larger column. W and b are known, so answers are checked by the formula. In the small ones y is 2 x.
"""

import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer.estimator import export, tpu
from tfx_tpu_trainer.estimator.tpu import inference_on_tpu

# TensorFlow's protos are stable files of theirs; SavedModel's has no alias under `tf`.


v1 = tf.compat.v1

WEIGHTS = np.array([[1.0, -2.0], [0.5, 3.0], [0.25, 4.0]], np.float32)
BIAS = np.array([0.5, -1.5], np.float32)
ROWS = np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 8.0], [0.0, 0.0, 0.0], [2.5, 1.0, -4.0]], np.float32)


def formula(rows: np.ndarray) -> np.ndarray:
    """Returns the model's output by formula."""
    return rows @ WEIGHTS + BIAS


def examples(rows: np.ndarray) -> list[bytes]:
    """Rows as serialized tf.Examples."""
    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=row))}
            )
        ).SerializeToString()
        for row in rows
    ]


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
    weights = v1.get_variable("weights", initializer=WEIGHTS)
    bias = v1.get_variable("bias", initializer=BIAS)

    def network(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, weights) + bias

    if mode == "infer":
        if params.get("batched") and params["use_tpu"]:
            (y,) = inference_on_tpu(
                lambda x: [network(x)],
                [features["x"]],
                num_batch_threads=2,
                max_batch_size=8,
                batch_timeout_micros=1000,
                allowed_batch_sizes=[2, 8],
            )
            return tpu.TPUEstimatorSpec(mode, predictions={"y": tf.identity(y) + 0.0})
        y = network(features["x"])
        if params.get("batched"):
            return tpu.TPUEstimatorSpec(mode, predictions={"y": y})
        text = v1.tpu.outside_compilation(tf.as_string, tf.argmax(y, axis=1))
        return tpu.TPUEstimatorSpec(mode, predictions={"y": y, "text": text})
    loss = tf.reduce_mean(tf.square(network(features["x"]) - labels))
    # The values stay unchanged: a step of length zero.
    train_op = v1.train.GradientDescentOptimizer(0.0).minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def train_and_export(folder: pathlib.Path, *, batched: bool = False) -> str:
    """Trains one step and exports for CPU and TPU hosts; gives the version folder.

    Args:
        folder: Where the checkpoint and the versions go.
        batched: Whether model_fn puts itself on the TPU, with batches padded to 2 or 8 rows.
    """
    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(model_dir=str(folder / "checkpoints")),
        params={"batched": batched},
        use_tpu=False,
        train_batch_size=4,
        export_saved_model_api_version=2 if batched else 1,
    )

    def input_fn(params: Any) -> tf.data.Dataset:
        del params
        return tf.data.Dataset.from_tensors(({"x": ROWS}, formula(ROWS)))

    estimator.train(input_fn, steps=1)
    receiver_fn = export.build_parsing_serving_input_receiver_fn(
        {"x": tf.io.FixedLenFeature([3], tf.float32)}
    )
    return estimator.export_saved_model(str(folder / "versions"), receiver_fn).decode()


def edited(path: str, copy: pathlib.Path, edit: Callable[[Any], None]) -> str:
    """Copies a SavedModel and edits its `serve`, `tpu` metagraph; gives the copy's path."""
    shutil.copytree(path, copy)
    file = copy / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    edit(saved_model.meta_graphs[1])
    file.write_bytes(saved_model.SerializeToString())
    return str(copy)


def tpu_program(meta_graph: Any) -> Any:
    """The function that the TPU call of a metagraph runs."""
    (call,) = [node for node in meta_graph.graph_def.node if node.op == "TPUPartitionedCall"]
    functions = meta_graph.graph_def.library.function
    return next(f for f in functions if f.signature.name == call.attr["f"].func.name)


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
