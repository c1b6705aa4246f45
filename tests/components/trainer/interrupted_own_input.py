"""A model that fails while a file exists, with its own input_fn, reshuffled in each epoch."""

from __future__ import annotations

import tensorflow as tf

from tests.components.trainer import interrupted_model as model
from tests.components.trainer import small_model

params = model.params
model_fn = model.model_fn


def input_fn(params, mode):
    rows = tf.data.Dataset.range(200)
    if mode == "train":
        rows = rows.shuffle(90, seed=4).repeat()
    return rows.map(_example).batch(params["batch_size"], drop_remainder=mode == "train")


def _example(row):
    value = tf.cast(row, tf.float32) / 200
    features = dict.fromkeys(small_model.DENSE, value)
    return {**features, "payment_type_xf": [row % 5]}, row % 2
