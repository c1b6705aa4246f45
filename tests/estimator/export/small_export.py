"""Exports a model without an estimator around it: a checkpoint of first values, then the export."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator import EstimatorSpec, export
from tfx_tpu_trainer.estimator._engine import tracing
from tfx_tpu_trainer.estimator.export._saved_model import export_saved_model
from tfx_tpu_trainer.estimator.extending import TPU_TAGS
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec
from tfx_tpu_trainer.serving import meta_graph_with, read_saved_model
from tfx_tpu_trainer.serving._both_graphs import on_cpu, served

v1 = tf.compat.v1

ROWS = [[0.1, 0.2, 0.3], [1.0, -1.0, 0.5]]


def receiver_fn() -> export.ServingInputReceiver:
    """Feeds the feature `x`, float32 [None, 3], as it is."""
    x = v1.placeholder(tf.float32, [None, 3], name="x_in")
    return export.ServingInputReceiver({"x": x}, {"x": x})


def linear(features: Any) -> tf.Tensor:
    """The product of `x` and a variable, which is drawn by the seed of the graph."""
    weights = v1.get_variable("w", [3, 2], initializer=v1.random_normal_initializer())
    return tf.matmul(features["x"], weights, name="y")


def call_model(network: Callable[[Any], Any], **spec_fields: Any) -> Callable[..., Any]:
    """A ModelCall of a network: its result becomes the predictions of a TPUEstimatorSpec."""

    def call(features: Any, labels: Any, mode: str, use_tpu: bool) -> TPUEstimatorSpec:
        del labels, use_tpu
        return TPUEstimatorSpec(mode, predictions=network(features), **spec_fields)

    return call


def call_host_model(network: Callable[[Any], Any], **spec_fields: Any) -> Callable[..., Any]:
    """The same with an EstimatorSpec."""

    def call(features: Any, labels: Any, mode: str, use_tpu: bool) -> EstimatorSpec:
        del labels, use_tpu
        return EstimatorSpec(mode, predictions=network(features), **spec_fields)

    return call


def write_checkpoint(
    model_call: Callable[..., Any], folder: Any, receiver: Callable[[], Any] = receiver_fn
) -> str:
    """Saves the first values of a model's variables, drawn with seed 7."""
    with tracing.fresh_graph(7):
        model_call(receiver().features, None, "infer", False)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.tables_initializer()])
            return v1.train.Saver().save(session, f"{folder}/model.ckpt", global_step=3)


def export_model(
    model_call: Callable[..., Any],
    folder: Any,
    *,
    serving_input_receiver_fn: Callable[[], Any] = receiver_fn,
    **changes: Any,
) -> str:
    """Writes a checkpoint, unless one is given, and exports from it."""
    arguments = {
        "export_dir_base": f"{folder}/versions",
        "call_model": model_call,
        "input_receiver_fns": {"infer": serving_input_receiver_fn},
        "export_to_cpu": True,
        "export_to_tpu": True,
        "api_version": 1,
        **changes,
    }
    if "checkpoint_path" not in arguments:
        arguments["checkpoint_path"] = write_checkpoint(
            model_call, folder, serving_input_receiver_fn
        )
    return export_saved_model(**arguments).decode()


def run_directly(model_call: Callable[..., Any], checkpoint: str, rows: Any) -> Any:
    """What the model predicts in a plain session."""
    with tracing.fresh_graph():
        spec = model_call({"x": tf.constant(rows)}, None, "infer", False)
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            v1.train.Saver().restore(session, checkpoint)
            return session.run(spec.predictions)


def serve(path: str, feeds: Any, signature: str = "serving_default") -> dict[str, Any]:
    """Feeds a signature of the `serve` metagraph through the v1 loader."""
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], path)
        signature_def = meta_graph.signature_def[signature]
        return session.run(
            {key: info.name for key, info in signature_def.outputs.items()},
            {signature_def.inputs[key].name: value for key, value in feeds.items()},
        )


def serve_tpu_graph(
    path: str, feeds: Mapping[str, Any], signature: str = "serving_default"
) -> dict[str, np.ndarray]:
    """Feeds a signature of the metagraph for TPU hosts, and gives what it fetches."""
    meta_graph = on_cpu(meta_graph_with(read_saved_model(path), TPU_TAGS))
    with served(path, meta_graph) as answer:
        return answer(signature, feeds)
