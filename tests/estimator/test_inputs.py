"""Input functions of arrays and data frames; what they refuse is in words/cases/inputs.py."""

import collections
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tfx_tpu_trainer import estimator as ours
from tfx_tpu_trainer.estimator import inputs

v1 = tf.compat.v1

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
    # What TensorFlow 2.15's queues say; ours goes on with the numbers.
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
