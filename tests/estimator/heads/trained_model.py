"""An Estimator whose model_fn uses a head and a Keras optimizer: the same program for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

STEPS = 7
ROWS = 12
BATCH = 4

# Name -> makes an optimizer from a module of legacy Keras optimizers.
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda keras: keras.SGD(0.1),
    "momentum": lambda keras: keras.SGD(0.1, momentum=0.9, decay=0.01),
    "Adam": lambda keras: keras.Adam(0.1),
    "Adagrad": lambda keras: keras.Adagrad(0.1),
    "Ftrl": lambda keras: keras.Ftrl(0.1, l1_regularization_strength=0.01),
    "RMSprop": lambda keras: keras.RMSprop(0.05),
}


def input_fn() -> tf.data.Dataset:
    generator = np.random.default_rng(7)
    x = generator.normal(size=[ROWS, 3]).astype(np.float32)
    features = {"x": x, "weight": generator.uniform(0.5, 2.0, [ROWS]).astype(np.float32)}
    labels = (x.sum(axis=1, keepdims=True) > 0).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat(4).batch(BATCH)


def model_fn_for(head: Any, make_optimizer: Callable[[], Any]) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        w = v1.get_variable("linear/w", [3, 1], initializer=v1.constant_initializer(0.25))
        b = v1.get_variable("linear/b", [1], initializer=v1.zeros_initializer())
        optimizer = make_optimizer()
        if mode == "train":
            optimizer.iterations = v1.train.get_or_create_global_step()
        return head.create_estimator_spec(
            features=features,
            mode=mode,
            logits=features["x"] @ w + b,
            labels=labels,
            optimizer=optimizer if mode == "train" else None,
            trainable_variables=[w, b],
            regularization_losses=[0.01 * tf.reduce_sum(w * w)],
        )

    return model_fn


def trained_facts(estimator_module: Any, keras: Any, name: str, folder: str) -> dict[str, Any]:
    """Trains, evaluates and predicts; gives the variables, metrics and predictions."""
    head = estimator_module.BinaryClassHead("weight", thresholds=[0.4])
    estimator = estimator_module.Estimator(
        model_fn_for(head, lambda: OPTIMIZERS[name](keras)), model_dir=folder
    )
    estimator.train(input_fn, steps=STEPS)
    variables = {key: estimator.get_variable_value(key) for key in estimator.get_variable_names()}
    metrics = estimator.evaluate(input_fn)
    (first, *_) = estimator.predict(input_fn)
    return {
        "variables": {key: np.asarray(value).tolist() for key, value in variables.items()},
        "metrics": {key: float(value) for key, value in metrics.items()},
        "prediction": {
            key: np.asarray(value).tolist()
            for key, value in first.items()
            if key != "classes" and key != "all_classes"
        },
    }
