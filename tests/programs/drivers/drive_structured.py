"""Neural Structured Learning around a canned classifier: adversarial neighbours, and neighbours of a graph.

Words: a folder, the number of cores, "adversarial" or "graph".
"""

import sys

import neural_structured_learning as nsl
import numpy as np
import tensorflow as tf

from tests.programs.drivers.calls import Calls

FOLDER, KIND = sys.argv[1], sys.argv[3]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)
NEIGHBOURS = {
    "NL_nbr_0_x": X + RANDOM.normal(size=X.shape).astype(np.float32) / 10,
    "NL_nbr_0_weight": np.ones((32, 1), np.float32),
}
COLUMNS = [tf.feature_column.numeric_column("x", [4])]


def adversarial():
    base = tf.estimator.DNNClassifier([8], COLUMNS, model_dir=FOLDER)
    settings = nsl.configs.make_adv_reg_config(multiplier=0.2, adv_step_size=0.1)
    optimizer = lambda: tf.compat.v1.train.AdamOptimizer(0.01)  # noqa: E731
    return nsl.estimator.add_adversarial_regularization(base, optimizer, settings)


def graph():
    base = tf.estimator.DNNClassifier([8], COLUMNS, model_dir=FOLDER)
    settings = nsl.configs.make_graph_reg_config(max_neighbors=1, multiplier=0.1)

    def embedding(features, mode):
        return tf.compat.v1.feature_column.input_layer(features, COLUMNS)

    optimizer = lambda: tf.compat.v1.train.AdamOptimizer(0.01)  # noqa: E731
    return nsl.estimator.add_graph_regularization(base, embedding, optimizer, settings)


def rows():
    features = {"x": X, **(NEIGHBOURS if KIND == "graph" else {})}
    return tf.data.Dataset.from_tensor_slices((features, Y)).repeat().batch(8)


def rows_once():
    return tf.data.Dataset.from_tensor_slices({"x": X}).batch(8)


def receiver():
    x = tf.compat.v1.placeholder(tf.float32, [None, 4])
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


calls = Calls(adversarial if KIND == "adversarial" else graph)
calls.train_and_resume(rows)
calls.evaluate(rows, steps=4, names=["accuracy"])
calls.predict(rows_once, rows=32)
calls.export(receiver, {"x": X[:3]}, signature="predict")
calls.finish()
