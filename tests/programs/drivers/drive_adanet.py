"""AdaNet's Estimator, and its TPUEstimator on the host and on cores: two iterations of a growing ensemble.

Words: a folder, the number of cores.
"""

import sys

import adanet
import numpy as np
import tensorflow.compat.v1 as tf

from tests.programs.drivers.calls import Calls, run_config

FOLDER, CORES, KIND = sys.argv[1], int(sys.argv[2]), sys.argv[3]
BATCH = 8
X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [2.0], [-1.0]], np.float32)


class Builder(adanet.subnetwork.Builder):
    """A network with one hidden layer."""

    def __init__(self, width):
        self._width = width

    @property
    def name(self):
        return f"width_{self._width}"

    def build_subnetwork(
        self, features, logits_dimension, training, iteration_step, summary, previous_ensemble=None
    ):
        hidden = tf.layers.dense(features["x"], self._width, tf.nn.relu)
        logits = tf.layers.dense(hidden, logits_dimension)
        return adanet.subnetwork.Subnetwork(
            last_layer=hidden, logits=logits, complexity=float(self._width) ** 0.5, shared={}
        )

    def build_subnetwork_train_op(
        self, subnetwork, loss, var_list, labels, iteration_step, summary, previous_ensemble
    ):
        optimizer = tf.train.GradientDescentOptimizer(0.05)
        if CORES:
            optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        return optimizer.minimize(loss, var_list=var_list)


class Generator(adanet.subnetwork.Generator):
    """Proposes a narrow and a wide one."""

    def generate_candidates(self, previous_ensemble, iteration_number, *_, **__):
        return [Builder(4), Builder(8)]


def rows(params=None):
    data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat()
    return data.batch(params["batch_size"] if params else BATCH, drop_remainder=True)


def rows_once(params=None):
    data = tf.data.Dataset.from_tensor_slices({"x": X})
    return data.batch(params["batch_size"] if params else BATCH, drop_remainder=True)


COMMON = {
    "head": tf.estimator.RegressionHead(),
    "subnetwork_generator": Generator(),
    "max_iteration_steps": 4,
    "force_grow": True,
}


def plain():
    config = tf.estimator.RunConfig(model_dir=FOLDER, tf_random_seed=1)
    return adanet.Estimator(config=config, **COMMON)


def on_cores():
    return adanet.TPUEstimator(
        config=run_config(tf.estimator.tpu, FOLDER, CORES),
        use_tpu=CORES > 0,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        export_to_tpu=False,
        **COMMON,
    )


def automatic():
    columns = [tf.feature_column.numeric_column("x", [3])]
    return adanet.AutoEnsembleEstimator(
        head=tf.estimator.RegressionHead(),
        candidate_pool={
            "linear": tf.estimator.LinearEstimator(tf.estimator.RegressionHead(), columns),
            "deep": tf.estimator.DNNEstimator(tf.estimator.RegressionHead(), [4], columns),
        },
        max_iteration_steps=4,
        config=tf.estimator.RunConfig(model_dir=FOLDER, tf_random_seed=1),
    )


def receiver():
    x = tf.placeholder(tf.float32, [None, 3])
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


KINDS = {"Estimator": plain, "TPUEstimator": on_cores, "AutoEnsembleEstimator": automatic}
calls = Calls(KINDS[KIND])
# The second call is a second iteration: the winner of the first is in its graph, frozen.
calls.train_and_resume(rows)
calls.evaluate(rows, steps=4, names=["average_loss", "architecture/adanet/ensembles"])
calls.predict(rows_once, rows=32)
calls.export(receiver, {"x": X[:3]}, signature="predict")
calls.finish()
