"""The order of the rows: each once in an epoch, and a position that does not grow with them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.components.inputs.row_cache.row_order import shuffled_row_numbers
from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import (
    REFUSED,
    iterators_of_default_graph,
)

v1 = tf.compat.v1


def _numbers(count, *, epochs, seed=1, batch_size=1, **sizes):
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = shuffled_row_numbers(count, batch_size=batch_size, seed=seed, **sizes)
        iterator = v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        session.run(iterator.initializer)
        drawn = [session.run(following) for _ in range(-(-count * epochs // batch_size))]
    return np.concatenate(drawn)[: count * epochs].reshape(epochs, count)


@pytest.mark.parametrize("count", [1, 7, 64, 65, 1000])
def test_each_number_comes_once_in_an_epoch(count):
    epochs = _numbers(count, epochs=3, batch_size=5, window=64, chunk=8)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), [np.arange(count)] * 3)


def test_a_window_has_rows_from_all_over_them_other_ones_in_each_epoch():
    windows = [
        set(each) for each in _numbers(1003, epochs=4, batch_size=16, window=64, chunk=8)[:, :64]
    ]
    for window in windows:
        # Eight chunks, of which hardly two lie beside each other.
        assert np.ptp(sorted(window)) > 500
        assert np.median(np.diff(sorted(window))) == 1
    assert all(len(one & other) < 40 for one in windows for other in windows if one is not other)


def test_rows_of_one_window_are_shuffled_evenly():
    epochs = _numbers(40, epochs=400, batch_size=32)
    # Each place sees each row 10 times on average: chi squared of 39 * 39 degrees of freedom.
    found = [np.bincount(epochs[:, place], minlength=40) for place in range(40)]
    assert abs((np.square(np.array(found) - 10) / 10).sum() - 39**2) < 5 * np.sqrt(2 * 39**2)


def test_without_a_seed_each_iterator_has_an_order_of_its_own():
    assert not np.array_equal(*(_numbers(40, epochs=1, seed=None) for _ in range(2)))


def test_a_position_is_small_and_exact_however_many_rows_there_are(tmp_path):
    path = str(tmp_path / "position")
    with tf.Graph().as_default():
        dataset = shuffled_row_numbers(50_000_000, batch_size=64, seed=None)
        iterator = v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        position = iterators_of_default_graph()
        with v1.Session() as session:
            session.run(iterator.initializer)
            for _ in range(1500):
                session.run(following)
            position.save(session, path, policy=REFUSED)
            expected = [session.run(following) for _ in range(3)]
        with v1.Session() as session:
            session.run(iterator.initializer)
            position.restore(session, path)
            np.testing.assert_array_equal([session.run(following) for _ in range(3)], expected)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_200_000
