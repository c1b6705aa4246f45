"""The models as a model_fn, for both TPUEstimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.models import ADAM_EPSILON, Model, mean_loss, predictions
from benchmarks.weights import Weight

v1 = tf.compat.v1


def make_model_fn(model: Model, tpu: Any) -> Callable[..., Any]:
    """Returns the model_fn."""

    def model_fn(features: Any, labels: tf.Tensor, mode: str, params: dict[str, Any]) -> Any:
        weights = {weight.name: _variable(weight) for weight in model.weights}
        logits = model.logits_of(weights, features, training=mode == "train")
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions=predictions(logits))
        loss = mean_loss(logits, labels)
        if mode == "eval":
            classes = predictions(logits)["class_id"]
            return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(_metrics, [labels, classes]))
        optimizer = v1.train.AdamOptimizer(model.learning_rate, epsilon=ADAM_EPSILON)
        if params["use_tpu"]:
            optimizer = tpu.CrossShardOptimizer(optimizer)
        step = v1.train.get_or_create_global_step()
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def _variable(weight: Weight) -> tf.Variable:
    def initial_value(*_: Any, **__: Any) -> tf.Tensor:
        return weight.initial_value()

    return v1.get_variable(
        weight.name, weight.shape, initializer=initial_value, trainable=weight.trainable
    )


def _metrics(labels: tf.Tensor, classes: tf.Tensor) -> dict[str, Any]:
    return {"accuracy": v1.metrics.accuracy(labels, classes)}
