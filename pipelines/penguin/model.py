"""Defines a Keras model of the penguins' species for TpuTrainer, which does the rest of a `run_fn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipelines.penguin.transform.preprocessing import MEASUREMENTS, SPECIES


def build_model(params: Mapping[str, Any]) -> tf.keras.Model:
    """Builds and compiles the model.

    Args:
        params: The fields of `PenguinModelSettings`.

    Returns:
        The model, from the measurements to a probability for each species.
    """
    layers = tf.keras.layers
    inputs = [layers.Input([1], name=name) for name in MEASUREMENTS]
    hidden = layers.Concatenate()(inputs)
    for units in params["hidden_units"]:
        hidden = layers.Dense(units, activation="relu")(hidden)
    outputs = layers.Dense(SPECIES, activation="softmax", name="probabilities")(hidden)
    model = tf.keras.Model(inputs, outputs)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(params["learning_rate"]),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
    return model


def callbacks(params: Mapping[str, Any]) -> list[tf.keras.callbacks.Callback]:
    """Stops when the eval split's loss has not improved in a number of evaluations."""
    return [tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=params["patience"])]
