"""Models that put themselves on the TPU, for version 2, and a plain Estimator's; both engines run them.

Plain TensorFlow 1 style code for TensorFlow 2.15 (`record_original.py`) and for ours. `helpers` is
the module with the original's, or our, `inference_on_tpu` and its companions.
"""

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

ROWS = [[0.1, 0.2, 0.3], [1.0, -1.0, 0.5], [2.0, 2.0, 2.0]]
NUMBERS = {
    "num_batch_threads": 3,
    "max_batch_size": 8,
    "batch_timeout_micros": 5000,
    "allowed_batch_sizes": [2, 8],
}
CASES = ("batched", "unbatched", "computation", "whole_batched", "whole_unbatched")


def input_fn(params: Any) -> tf.data.Dataset:
    """Four rows in one batch, repeated."""
    del params
    rows = tf.reshape(tf.range(12, dtype=tf.float32), [4, 3]) / 12.0
    data = tf.data.Dataset.from_tensor_slices(({"x": rows}, tf.reduce_sum(rows, axis=1)))
    return data.repeat().batch(4, drop_remainder=True)


def receiver_fn(export: Any) -> Any:
    """Builds a receiver function: the feature `x`, float32 [None, 3], fed as it is."""

    def serving_input_receiver_fn() -> Any:
        x = v1.placeholder(tf.float32, [None, 3], name="x_in")
        return export.ServingInputReceiver({"x": x}, {"x": x})

    return serving_input_receiver_fn


def supervised_receiver_fn(builder: Any) -> Any:
    """Builds a receiver function of features and labels.

    Args:
        builder: `build_raw_supervised_input_receiver_fn`, the original's or ours.
    """
    with tf.Graph().as_default():
        features = {"x": v1.placeholder(tf.float32, [None, 3], name="x_in")}
        return builder(features, v1.placeholder(tf.float32, [None], name="label_in"))


def network(x: tf.Tensor) -> list[tf.Tensor]:
    """One linear unit, [rows, 1]."""
    weights = v1.get_variable("weights", [3, 1], initializer=v1.ones_initializer())
    return [tf.matmul(x, weights)]


def serve(path: str) -> list:
    """Feeds ROWS to the `serve` metagraph."""
    with tf.Graph().as_default(), v1.Session() as session:
        meta_graph = v1.saved_model.load(session, [tf.saved_model.SERVING], path)
        signature = meta_graph.signature_def["serving_default"]
        return session.run(signature.outputs["y"].name, {signature.inputs["x"].name: ROWS}).tolist()


def _train(loss: tf.Tensor) -> tf.Operation:
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    return optimizer.minimize(loss, global_step=v1.train.get_global_step())


def model_fn_for(spec: Any, predict_output: Any, helpers: Any, case: str) -> Any:
    """Builds the model_fn of one of CASES.

    Args:
        spec: `TPUEstimatorSpec`, the original's or ours.
        predict_output: `PredictOutput`, the original's or ours.
        helpers: The module with the helpers.
        case: `batched` and `unbatched` call inference_on_tpu, `computation` call_computation, and
            the others model_fn_inference_on_tpu.
    """

    def plain_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        (y,) = network(features["x"])
        if mode == "infer":
            # The original's model_fn_inference_on_tpu takes no TPUEstimatorSpec without them.
            outputs = {"serving_default": predict_output({"y": y})}
            return spec(mode=mode, predictions={"y": y}, export_outputs=outputs)
        loss = tf.reduce_mean(tf.square(y[:, 0] - labels))
        return spec(mode=mode, loss=loss, train_op=_train(loss))

    def on_tpu(features: Any, params: Any, mode: str) -> Any:
        if case.startswith("whole"):
            config = None
            if case == "whole_batched":
                config = helpers.BatchConfig(**NUMBERS, max_enqueued_batches=7)
            return helpers.model_fn_inference_on_tpu(
                plain_model_fn, features, params=params, batch_config=config
            )
        if case == "computation":

            def computation(inputs: Any) -> list[tf.Tensor]:
                return v1.tpu.rewrite(lambda: network(inputs["x"]))

            (y,) = helpers.call_computation(
                features, computation, batch_config=helpers.BatchConfig(**NUMBERS)
            )
        else:
            numbers = dict(NUMBERS) if case == "batched" else {**NUMBERS, "max_batch_size": None}
            (y,) = helpers.inference_on_tpu(network, [features["x"]], **numbers)
        return spec(mode=mode, predictions={"y": y})

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        if mode == "infer" and params["use_tpu"]:
            return on_tpu(features, params, mode)
        return plain_model_fn(features, labels, mode, params)

    return model_fn


def supervised_model_fn_for(spec: Any) -> Any:
    """Builds a model_fn with metrics in every mode but infer.

    Args:
        spec: `TPUEstimatorSpec`, the original's or ours.
    """

    def metric_fn(y: tf.Tensor, labels: tf.Tensor) -> dict:
        return {
            "mean": v1.metrics.mean(y),
            "metrics_error": v1.metrics.mean_squared_error(labels, y),
        }

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        del params
        (y,) = network(features["x"])
        y = y[:, 0]
        if mode == "infer":
            return spec(mode=mode, predictions={"y": y})
        loss = tf.reduce_mean(tf.square(y - labels))
        return spec(
            mode=mode,
            loss=loss,
            train_op=_train(loss) if mode == "train" else None,
            predictions={"y": y, "predictions_twice": 2 * y},
            eval_metrics=(metric_fn, [y, labels]),
        )

    return model_fn
