"""What an input_fn may return in place of a Dataset, on the host and on two cores.

The original takes all of it on the host, and hands it to model_fn as it is: compared by running
the same forms with `tensorflow_estimator` 2.15, in all three modes.
"""

import collections
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as ours
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, inputs, tpu

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


AGES = np.array([10.0, 11.0, 12.0, 13.0, 14.0], np.float32)
NAMES = np.array(["a", "b", "c", "d", "e"])
LABELS = np.array([0, 1, 2, 3, 4])


def read(input_fn: Any, limit: int = 100) -> list[Any]:
    """The batches of an input function."""
    found = []
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(4)
        tensors = input_fn()
        for _ in range(limit):
            try:
                found.append(session.run(tensors))
            except tf.errors.OutOfRangeError:
                break
    return found


def test_batches_cross_the_ends_of_the_data_and_the_last_one_is_short():
    input_fn = inputs.numpy_input_fn(
        {"age": AGES, "name": NAMES}, LABELS, batch_size=3, num_epochs=2, shuffle=False
    )
    found = read(input_fn)
    assert [labels.tolist() for _, labels in found] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    assert found[1][0]["age"].tolist() == [13, 14, 10]
    assert found[1][0]["name"].tolist() == [b"d", b"e", b"a"]


def test_without_end_all_batches_are_full():
    input_fn = inputs.numpy_input_fn(AGES, batch_size=4, num_epochs=None, shuffle=False)
    found = read(input_fn, limit=4)
    assert [len(batch) for batch in found] == [4, 4, 4, 4]
    assert found[1].tolist() == [14, 10, 11, 12]


@pytest.mark.parametrize("threads", [1, 2])
def test_shuffled_rows_stay_together_and_come_as_often_as_asked(threads):
    input_fn = inputs.numpy_input_fn(
        {"age": AGES}, {"label": LABELS}, 2, num_epochs=3, shuffle=True, num_threads=threads
    )
    found = read(input_fn)
    rows = [(age, label) for x, y in found for age, label in zip(x["age"], y["label"], strict=True)]
    assert all(age == AGES[label] for age, label in rows)
    assert set(collections.Counter(rows).values()) == {3 * threads}
    assert [label for _, label in rows] != sorted(label for _, label in rows)


@pytest.mark.parametrize("shuffle", [True, False])
def test_several_threads_are_warned_of_in_the_words_of_the_original(shuffle, caplog):
    with tf.Graph().as_default():
        inputs.numpy_input_fn(AGES, shuffle=shuffle, num_epochs=3, num_threads=2)()
    epochs, order = caplog.messages
    # The message of TensorFlow 2.15's queues; ours continues with the numbers.
    assert epochs.startswith(
        "enqueue_data was called with num_epochs and num_threads > 1. num_epochs is applied per "
        "thread, so this will produce more epochs than you probably intend. If you want to limit "
        "epochs, use one thread."
    )
    assert "reads each row num_epochs * num_threads = 6 times" in epochs
    assert order.startswith(
        "enqueue_data was called with shuffle=True, num_threads > 1, and num_epochs. This will "
        "create multiple threads, all reading the array/dataframe in order adding to the same "
        "shuffling queue; the results will likely not be sufficiently shuffled"
        if shuffle
        else "enqueue_data was called with shuffle=False and num_threads > 1. This will create "
        "multiple threads, all reading the array/dataframe in order. If you want examples read in "
        "order, use one thread; if you want multiple threads, enable shuffling."
    )


def test_shapes_and_types_are_known():
    with tf.Graph().as_default():
        features, labels = inputs.numpy_input_fn(
            {"pair": np.zeros((6, 2), np.float32), "name": np.array(["a"] * 6)},
            np.zeros((6, 1), np.int64),
            batch_size=2,
            shuffle=False,
        )()
    assert (features["pair"].dtype, features["pair"].shape[1:]) == (tf.float32, [2])
    assert (features["name"].dtype, features["name"].shape.rank) == (tf.string, 1)
    assert (labels.dtype, labels.shape[1:]) == (tf.int64, [1])


def test_rows_are_not_written_into_the_graph():
    many = np.random.RandomState(1).uniform(size=(1000, 100))
    with tf.Graph().as_default() as graph:
        inputs.numpy_input_fn({"x": many}, batch_size=2, shuffle=True)()
    assert graph.as_graph_def().ByteSize() < 20_000


def test_frames_give_series_as_tensors_and_frames_as_dicts():
    x = pd.DataFrame({"age": AGES, "name": NAMES}, index=range(10, 15))
    series = pd.Series(LABELS, index=range(10, 15))
    features, labels = read(inputs.pandas_input_fn(x, series, batch_size=2, shuffle=False))[2]
    assert features["age"].tolist() == [14]
    assert features["name"].tolist() == [b"e"]
    assert labels.tolist() == [4]
    frame = pd.DataFrame({"one": LABELS, "two": LABELS * 2}, index=range(10, 15))
    _, labels = read(inputs.pandas_input_fn(x, frame, 5, shuffle=False, queue_capacity=None))[0]
    assert labels["two"].tolist() == [0, 2, 4, 6, 8]
    assert list(read(inputs.pandas_input_fn(x, shuffle=True))[0]) == ["age", "name"]


def test_an_estimator_trains_evaluates_and_predicts_from_arrays(tmp_path):
    column = tf.feature_column.numeric_column("age")
    estimator = ours.v1.LinearRegressor([column], model_dir=str(tmp_path))
    estimator.train(
        inputs.numpy_input_fn({"age": AGES}, LABELS, 2, num_epochs=None, shuffle=True), steps=5
    )
    metrics = estimator.evaluate(inputs.numpy_input_fn({"age": AGES}, LABELS, 2, shuffle=False))
    assert metrics["label/mean"] == LABELS.mean()
    assert len(list(estimator.predict(inputs.numpy_input_fn({"age": AGES}, shuffle=False)))) == 5
