"""Keras models that train in seconds on the tfx wheel's taxi data; `params` selects one."""

from __future__ import annotations

import importlib

import tensorflow as tf

NUMBERS = ("trip_miles_xf", "fare_xf", "trip_seconds_xf")

params = {"library": "keras", "kind": "functional", "learning_rate": 0.01, "weighted": False}


def build_model(params):
    keras = importlib.import_module(params["library"])
    compiled = {"loss": "binary_crossentropy"}
    metrics = ["accuracy"]
    if params["kind"] == "subclassed":
        model = _Subclassed.of(keras)
    else:
        inputs = {name: keras.Input([1], name=name) for name in NUMBERS[:2]}
        hidden = keras.layers.Concatenate()([inputs[name] for name in sorted(inputs)])
        hidden = keras.layers.BatchNormalization(name="norm")(hidden)
        hidden = keras.layers.Dense(4, "relu", name="hidden")(hidden)
        big = keras.layers.Dense(1, "sigmoid", name="tips_xf")(hidden)
        outputs = big
        if params["kind"] == "two outputs":
            outputs = [big, keras.layers.Dense(1, name="trip_seconds_xf")(hidden)]
            compiled["loss"] = {"tips_xf": "binary_crossentropy", "trip_seconds_xf": "mse"}
            metrics = {"tips_xf": ["accuracy"], "trip_seconds_xf": ["mae"]}
        model = keras.Model(inputs, outputs)
    named = "weighted_metrics" if params["weighted"] else "metrics"
    optimizer = keras.optimizers.Adam(params["learning_rate"])
    model.compile(optimizer, **compiled, **{named: metrics})
    return model


class _Subclassed:
    @staticmethod
    def of(keras):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1, "sigmoid")

            def call(self, features):
                return self.dense(tf.concat([features[name] for name in NUMBERS], axis=1))

        return Model()
