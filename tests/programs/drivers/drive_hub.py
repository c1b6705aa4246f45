"""TensorFlow Hub 0.13: a module that a model_fn trains on, and a column of one in a canned estimator.

Words: a folder, the number of cores, "module" or "column".
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow_hub as hub

from tests.programs.drivers import models
from tests.programs.drivers.calls import Calls

FOLDER, CORES, KIND = sys.argv[1], int(sys.argv[2]), sys.argv[3]
MODULE = os.path.join(FOLDER, "published")
WORDS = np.array([f"word {number % 5}" for number in range(32)])


def dense_module():
    x = tf.placeholder(tf.float32, [None, models.WIDTH])
    hub.add_signature(inputs=x, outputs=tf.layers.dense(x, 3, tf.nn.tanh))


def text_module():
    text = tf.placeholder(tf.string, [None])
    table = tf.get_variable("table", [10, 4])
    found = tf.nn.embedding_lookup(table, tf.strings.to_hash_bucket_fast(text, 10))
    hub.add_signature(inputs=text, outputs=found)


def publish(module_fn):
    """Publishes a module; a later run in the same folder uses it too."""
    if os.path.exists(MODULE):
        return
    with tf.Graph().as_default(), tf.Session() as session:
        module = hub.Module(hub.create_module_spec(module_fn))
        session.run(tf.global_variables_initializer())
        module.export(MODULE, session)


def model_fn(features, labels, mode, params):
    module = hub.Module(MODULE, trainable=True, name="published")
    found = tf.layers.dense(module(features["x"]), 1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return models.predicted(mode, {"y": found})
    loss = tf.losses.mean_squared_error(labels, found)
    metrics = (
        lambda y, found: {"error": tf.metrics.mean_absolute_error(y, found)},
        [labels, found],
    )
    return models.spec(mode, loss, metrics, lambda: tf.train.GradientDescentOptimizer(0.05), CORES)


def classifier():
    column = hub.text_embedding_column("text", MODULE, trainable=True)
    return tf.estimator.DNNClassifier([8], [column], os.path.join(FOLDER, "model"))


def rows():
    labels = (np.arange(32) % 2).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(({"text": WORDS}, labels)).repeat().batch(8)


def rows_once():
    return tf.data.Dataset.from_tensor_slices({"text": WORDS}).batch(8)


def receiver():
    text = tf.placeholder(tf.string, [None])
    return tf.estimator.export.ServingInputReceiver({"text": text}, {"text": text})


if KIND == "module":
    publish(dense_module)
    # A module is imported into the graph, which a TPU's part of an export, a function, does not allow.
    models.all_calls(model_fn, os.path.join(FOLDER, "model"), CORES, export_to_tpu=False)
else:
    publish(text_module)
    calls = Calls(classifier)
    calls.train_and_resume(rows)
    calls.evaluate(rows, steps=4, names=["accuracy"])
    calls.predict(rows_once, rows=32)
    calls.export(receiver, {"text": WORDS[:3]}, signature="predict")
    calls.finish()
