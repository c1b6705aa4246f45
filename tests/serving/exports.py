"""Models that our TPUEstimator exports, and copies of them that are broken on purpose.

The model computes `y = x W + b` of `x` [batch, 3] and, outside of the compilation, the text of the
larger column. W and b are known, so that answers are checked by the formula.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfx_tpu_trainer.estimator import export, tpu
from tfx_tpu_trainer.estimator.tpu import inference_on_tpu

v1 = tf.compat.v1

WEIGHTS = np.array([[1.0, -2.0], [0.5, 3.0], [0.25, 4.0]], np.float32)
BIAS = np.array([0.5, -1.5], np.float32)
ROWS = np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 8.0], [0.0, 0.0, 0.0], [2.5, 1.0, -4.0]], np.float32)


def formula(rows: np.ndarray) -> np.ndarray:
    """What the model answers."""
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
    # The values stay as they are: a step of length zero.
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


def with_other_values(path: str, copy: pathlib.Path, change: Callable[[Any], Any]) -> str:
    """Copies a SavedModel and changes the values of its weights; gives the copy's path."""
    shutil.copytree(path, copy)
    prefix = str(copy / "variables" / "variables")
    reader = tf.train.load_checkpoint(prefix)
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    values["weights"] = change(values["weights"])
    for file in (copy / "variables").iterdir():
        file.unlink()
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            name: v1.get_variable(name, initializer=value) for name, value in values.items()
        }
        session.run(v1.global_variables_initializer())
        v1.train.Saver(variables, sharded=True).save(session, prefix, write_meta_graph=False)
    (copy / "variables" / "checkpoint").unlink()
    return str(copy)


def tpu_program(meta_graph: Any) -> Any:
    """The function that the TPU call of a metagraph runs."""
    (call,) = [node for node in meta_graph.graph_def.node if node.op == "TPUPartitionedCall"]
    functions = meta_graph.graph_def.library.function
    return next(f for f in functions if f.signature.name == call.attr["f"].func.name)
