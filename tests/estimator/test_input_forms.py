"""What an input_fn may return in place of a Dataset, on the host and on two cores.

The original takes all of it on the host, and hands it to model_fn as it is: compared by running
the same forms with `tensorflow_estimator` 2.15, in all three modes.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, tpu

v1 = tf.compat.v1

X = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
Y = [1.0, 2.0, 3.0, 5.0]
Pair = collections.namedtuple("Pair", ["features", "labels"])

# Name -> input, the sum of its features, the sum of its labels; both of rows.
WITH_ROWS = {
    "lists": (lambda: (X, Y), 36, 11),
    "a named tuple": (lambda: Pair(tf.constant(X), Y), 36, 11),
    "arrays": (lambda: ({"x": np.array(X)}, np.array(Y, np.int32)), 36, 11),
    "a list of arrays": (lambda: ([np.array(X), np.array(X)], Y), 72, 11),
    "a variable": (lambda: ({"x": v1.Variable(X, trainable=False)}, Y), 36, 11),
    "mixed and nested": (
        lambda: ({"in": {"x": X, "y": np.array(X)}, "z": tf.constant(X)}, {"l": (Y, tf.stack(Y))}),
        108,
        22,
    ),
    "no features": (lambda: (None, Y), 0, 11),
}
NUMBERS = {
    "numbers": (lambda: (3, 0.5), 3, 0.5),
    "a string": (lambda: "abc", 3, 0),
    "nothing": (lambda: None, 0, 0),
}


def _total(given):
    total = tf.constant(0.0)
    for leaf in tf.nest.flatten(given):
        if leaf is not None:
            tensor = tf.convert_to_tensor(leaf)
            number = tf.strings.length(tensor) if tensor.dtype == tf.string else tensor
            total += tf.reduce_sum(tf.cast(number, tf.float32))
    return total


def _model_fn(features, labels, mode, params):
    bias = v1.get_variable("bias", [], initializer=v1.zeros_initializer())
    total = _total(features)
    if mode == "infer":
        return EstimatorSpec(mode, predictions={"total": tf.reshape(total, [1])})
    loss = bias + total + 100.0 * _total(labels)
    optimizer = v1.train.GradientDescentOptimizer(1.0)
    if not params.get("use_tpu"):
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)
    train_op = tpu.CrossShardOptimizer(optimizer).minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


@mostly_swept(
    "form",
    [*WITH_ROWS, *NUMBERS],
    kept=["a variable", "a string", "nothing"],
)
@pytest.mark.behaviour(116)
def test_the_host_takes_any_form_in_every_mode(tmp_path, form):
    make, features, labels = {**WITH_ROWS, **NUMBERS}[form]
    estimator = Estimator(_model_fn, str(tmp_path), params={})
    if "mixed" in form:
        sizes = {"train_batch_size": 4, "eval_batch_size": 4, "predict_batch_size": 4}
        estimator = tpu.TPUEstimator(
            _model_fn, str(tmp_path), tpu.RunConfig(), use_tpu=False, **sizes
        )
    estimator.train(lambda params: make(), steps=1)
    assert estimator.get_variable_value("bias") == -1
    evaluated = estimator.evaluate(lambda params: make(), steps=2)
    assert evaluated["loss"] == features + 100 * labels - 1
    predicted = estimator.predict(lambda params: make())
    assert [next(predicted)["total"] for _ in range(2)] == [features, features]


@pytest.mark.behaviour(116)
def test_model_fn_on_the_host_gets_what_input_fn_returned(tmp_path):
    given = ({"x": X, "k": 3, "n": np.array(X)}, Y)
    seen = []

    def model_fn(features, labels, mode):
        seen.append((features, labels))
        return EstimatorSpec(mode, loss=tf.constant(1.0), predictions=tf.constant([1.0]))

    Estimator(model_fn, str(tmp_path)).evaluate(lambda: given, steps=1)
    assert seen[0][0] is given[0]
    assert seen[0][1] is given[1]


@mostly_swept(
    "form",
    [*WITH_ROWS, *NUMBERS],
    kept=["mixed and nested", "numbers"],
)
@pytest.mark.behaviour(123)
def test_cores_take_any_form(tmp_path, form):
    make, features, labels = {**WITH_ROWS, **NUMBERS}[form]
    config = tpu.RunConfig(
        master="emulated", tpu_config=tpu.TPUConfig(num_shards=2, iterations_per_loop=1)
    )
    estimator = tpu.TPUEstimator(
        _model_fn, str(tmp_path), config, train_batch_size=4, eval_batch_size=4
    )
    estimator.train(lambda params: make(), steps=1)
    assert estimator.get_variable_value("bias") == -1
    evaluated = estimator.evaluate(lambda params: make(), steps=2)
    # The mean of the cores: each has half of the rows, and numbers as they are.
    share = 0.5 if form in WITH_ROWS else 1
    assert evaluated["loss"] == share * (features + 100 * labels) - 1


@pytest.mark.behaviour(123)
def test_numbers_go_to_every_core_beside_rows(tmp_path):
    def model_fn(features, labels, mode, params):
        assert features["x"].shape == [2, 2]
        assert labels.shape == []
        return _model_fn({"x": features["x"] * features["k"]}, labels, mode, params)

    config = tpu.RunConfig(master="emulated", tpu_config=tpu.TPUConfig(num_shards=2))
    estimator = tpu.TPUEstimator(
        model_fn, str(tmp_path), config, train_batch_size=4, eval_batch_size=4
    )
    evaluated = estimator.evaluate(lambda params: ({"x": X, "k": 3.0}, 0.5), steps=1)
    assert evaluated["loss"] == 3 * 36 / 2 + 100 * 0.5
